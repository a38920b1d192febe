"""A config's digest: what results carry so that nobody takes those of another config for theirs."""

import hashlib
import json
from typing import Any


def digest_of(tree: dict[str, Any]) -> str:
    """Return the SHA-256 of a config in canonical JSON."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
