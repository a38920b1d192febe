"""An audit's budget: so much time in all, divided among what is still to be done."""

import re
import time
from dataclasses import dataclass, field

from vfl.errors import UserError

_NUMBER = r"(\d+(?:\.\d+)?)"
_TIME = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")
_UNITS = (3600.0, 60.0, 1.0)
LEAST_SECONDS = 15.0
"""An attack's process takes some seconds to start: with less than this it would only be refused its time."""
SLOT_SECONDS = 45.0
"""A defence's run and the attacks on it take some of this on two idle cores."""
PATIENCE = 3.0
"""How many equal shares of what is left an attempt may take; most end long before their share is over."""


def seconds_of(text: str) -> float:
    """Read 90s, 15m, 1h or 1h30m."""
    parts = _TIME.fullmatch(text.strip())
    found = sum(float(part) * unit for part, unit in zip(parts.groups(), _UNITS, strict=True) if part) if parts else 0.0
    if not found:
        raise UserError(f"--budget {text}: expected a time such as 90s, 15m or 1h30m")
    return found


@dataclass(frozen=True)
class Budget:
    """When an audit began, and how long it may take; one that is resumed has all of it again for what is left."""

    seconds: float
    spent: float = 0.0
    """By earlier processes of this audit."""
    began: float = field(default_factory=time.monotonic)

    @property
    def used(self) -> float:
        """Return how much time the audit has taken, that of earlier processes too."""
        return self.spent + self._gone

    @property
    def _gone(self) -> float:
        return time.monotonic() - self.began

    def left(self, until: float = 1.0) -> float:
        """Return how many seconds are left until so great a share of the whole is gone."""
        return until * self.seconds - self._gone

    def half(self, *, until: float = 1.0) -> float:
        """Return at which share of the whole half of what is left is over: the other half is for what comes of it."""
        return (self._gone + max(0.0, self.left(until)) / 2) / self.seconds

    def slot(self, trials: int, *, until: float = 1.0) -> float:
        """Return by which share of the whole the next of so many trials must be over: others have their turn."""
        takes = max(SLOT_SECONDS, PATIENCE * self.left(until) / max(1, trials))
        return min(until, (self._gone + takes) / self.seconds)

    def share(self, attempts: int, *, until: float = 1.0, at_once: int = 1) -> float:
        """Return how long the next of so many attempts may take, 0 if there is no time for it."""
        left = self.left(until)
        if left < LEAST_SECONDS:
            return 0.0
        return min(left, max(LEAST_SECONDS, PATIENCE * at_once * left / max(1, attempts)))
