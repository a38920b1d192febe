"""What the benchmarks share: federations to disturb, hosts, cables, meters, hot paths, and a way to save numbers."""

import json
from pathlib import Path


def save(out: Path | None, numbers: object) -> None:
    """Write a benchmark's numbers as JSON, if the user named a file."""
    if out is not None:
        out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
