"""Words in a table: names of columns, and words that are meant as numbers or dates rather than as categories."""

import re
from typing import Annotated
from unicodedata import normalize

from pydantic import AfterValidator

from vfl.datasets.columns import Text
from vfl.errors import UserError
from vfl.limits import plain

_TIME = r"([T ]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s?(Z|[+-]\d{2}:?\d{2}|[AaPp][Mm])?)?"
_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2}))" + _TIME)
_SIGN = r"([$€£¥₹%]|[A-Z]{3}\b)?"
_NUMBER = re.compile(
    rf"{_SIGN}\s?[-+−]?\s?{_SIGN}\s?(\d{{1,3}}([,.'’ \u00a0\u202f]\d{{3}})+|\d+)?([.,]\d+)?([eE][-+]?\d+)?\s?{_SIGN}"
)


def normal(word: str) -> str:
    """Write accented letters in one of the forms that Unicode has for them (NFC): files have either."""
    return normalize("NFC", word)


Name = Annotated[str, AfterValidator(normal)]
"""A column's name in a config."""


def check_words(name: str, values: Text, source: str) -> None:
    """Refuse a column whose words are all dates, or all numbers in a notation that is not read as numbers."""
    words = [word for word in values.words if word]
    if not words:
        return
    where, otherwise = f"data: column {name!r} of {source}", "or name it in data.categorical if each is a category"
    if all(map(_DATE.fullmatch, words)):
        raise UserError(
            f"{where} holds dates ({plain(words[0])!r} for one); make numbers of them, such as days since some day, "
            f"leave it out of data.columns, {otherwise}"
        )
    if all(_NUMBER.fullmatch(word) and any(one.isdigit() for one in word) for word in words):
        strange = next((word for word in words if not is_number(word)), None)
        if strange is None:  # all are numbers but the empty word, which made the column one of words
            raise UserError(
                f"{where} holds numbers and empty words; put '' among data.missing_values if they are missing values, "
                f"{otherwise}"
            )
        raise UserError(
            f"{where} holds numbers, and {plain(strange)!r} is not written as one: leave out currency, percent and "
            f"thousands signs, write a decimal point and the digits 0 to 9, {otherwise}"
        )


def is_number(word: str) -> bool:
    """Return whether pyarrow reads a word as a number: unlike Python it takes ASCII digits only."""
    try:
        float(word)
    except ValueError:
        return False
    return word.isascii() and "_" not in word
