"""How often certified samples were wrong where the truth was known: what `cafe bench certificates` counted."""

import json
from functools import cache
from pathlib import Path

COUNTED = Path(__file__).parent / "certificates.json"

COUNTED_ATTACKS = ("exact", "theory")
"""Whose certificates these are."""


@cache
def certified_and_wrong() -> str:
    """Return the count in words; docs/certificates.md has the table."""
    counted = json.loads(COUNTED.read_text(encoding="utf-8"))
    return f"{counted['certified_wrong']:,} of {counted['certified']:,} such samples of other runs were wrong"
