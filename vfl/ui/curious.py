"""Who is curious, as the page says and draws it: whose nodes are marked, and whose messages reach the attack."""

from typing import Any

from pydantic import TypeAdapter

from vfl.folder.verdict import seat_of
from vfl.seats import Adversary, Seat, names_of_seats

SEES = {
    "coordinator": "every worker's gradients",
    "label_holder": "every worker's outputs",
    "worker": "the answers to its own outputs",
}
CHEATS = {
    "coordinator": "orders what its attack proposes",
    "label_holder": "answers what its attack proposes",
    "worker": "uploads what its attack proposes",
}
_ADVERSARY: TypeAdapter[Any] = TypeAdapter(Adversary)


def curious(adversary: Any, holder: int | None) -> dict[str, Any]:
    """Return the curious parties of a run whose labels are at the worker `holder`, from what its config says."""
    named = _ADVERSARY.validate_python(adversary)
    seats = [seat_of(one) for one in (named if isinstance(named, tuple) else (named,))]
    return {
        "words": names_of_seats(seats),
        "several": len(seats) > 1,
        "sentences": [_sentence(seat) for seat in seats],
        "coordinator": any(seat.kind == "coordinator" for seat in seats),
        "workers": [holder if seat.kind == "label_holder" else seat.worker for seat in seats if _is_worker(seat)],
    }


def _is_worker(seat: Seat) -> bool:
    return seat.kind != "coordinator"


def _sentence(seat: Seat) -> str:
    name = str(seat)
    does = f"{CHEATS[seat.kind]}, and" if seat.malicious else "is curious: it"
    return f"{name[:1].upper()}{name[1:]} {does} sees {SEES[seat.kind]}"
