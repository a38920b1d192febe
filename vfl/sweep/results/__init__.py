"""What comes of a sweep: the numbers that the summary's schema describes, as tables, pictures and pages."""

from vfl.folder.schema import numbers_in, value_at
from vfl.folder.summary import Summary

NUMBERS = {
    number.key: number
    for number in sorted(numbers_in(Summary), key=lambda number: not number.key.startswith("attack."))  # those first
}


def numbers_of(summary: Summary) -> dict[str, float | None]:
    """Return every number that a summary holds or that follows from it; the others are None."""
    return {key: value_at(summary, number.place) for key, number in NUMBERS.items()}
