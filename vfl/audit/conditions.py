"""`--fail-if "labels > 0.6"`: a sentence about an audit that a build pipeline ends with exit code 1 on."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from vfl.audit.schema import Audit, Finding, What
from vfl.errors import UserError

WHATS = (*get_args(What), "anything")
_FORM = re.compile(rf"\s*({'|'.join(WHATS)})(\.beyond|\.leaked)?\s*(>=|>)\s*(\d*\.?\d+)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Condition:
    """What must not be: more than so much of one kind of data known to any seat."""

    text: str
    what: str
    beyond: bool
    compare: str
    bound: float

    @classmethod
    def read(cls, text: str) -> "Condition":
        """Read `labels > 0.6`, `columns.beyond >= 0.1` or `anything > 0.1`."""
        found = _FORM.fullmatch(text)
        if found is None:
            known = ", ".join(WHATS)
            raise UserError(
                f'--fail-if "{text}": expected such as "labels > 0.6" or "columns.beyond > 0.1", with one of {known}, '
                f"> or >=, and a share between 0 and 1"
            )
        what, field, compare, bound = found.groups()
        # Shares of different things cannot be compared as they are: of `anything` it is what a guess leaves open.
        beyond = field == ".beyond" or (what == "anything" and field is None)
        return cls(text.strip(), what, beyond, compare, float(bound))

    def failure(self, audit: Audit) -> str:
        """Return why an audit fails it, "" if it does not; what no attack came to a result on fails too."""
        own = [one for one in audit.findings if one.defence == audit.base and self.what in (one.what, "anything")]
        if not own:
            return f"{self.text}: no attack came to a scored result on it, so that nothing shows that it is not so"
        worst = max(own, key=self._value)
        if not _COMPARE[self.compare](self._value(worst), self.bound):
            return ""
        of = " of what a guess leaves open" if self.beyond else f" (a guess: {worst.guess:.3g})"
        return f"{self.text}: it is {self._value(worst):.3g}{of}. {worst.sentence.rstrip('.')} (by {worst.attack})"

    def _value(self, finding: Finding) -> float:
        return finding.beyond if self.beyond else finding.leaked
