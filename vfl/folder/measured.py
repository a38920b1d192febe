"""How often certified samples were wrong where the truth was known: what `cafe bench certificates` counted."""

import json
from functools import cache
from pathlib import Path

COUNTED = Path(__file__).parent / "certificates.json"

COUNTED_ATTACKS = ("exact", "theory")
"""Whose certificates these are."""


@cache
def certified_and_wrong(attack: str) -> str:
    """Return the count in words, with what goes before it; nothing for an attack whose certificates were not counted.

    docs/certificates.md has the table.
    """
    if attack not in COUNTED_ATTACKS:
        return ""
    counted = json.loads(COUNTED.read_text(encoding="utf-8"))
    return f"; {counted['certified_wrong']:,} of {counted['certified']:,} such samples of other runs were wrong"
