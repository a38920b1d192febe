"""Why an attack cannot run on a setting: what it needs, and what it finds instead."""

from dataclasses import dataclass

from vfl.errors import UserError


@dataclass(frozen=True)
class Lack:
    """One thing that an attack needs and does not find."""

    needs: str
    found: str
    by: str = ""
    """The method that needs it, of an attack that has several."""

    def __str__(self) -> str:
        return f"{f'by {self.by} ' if self.by else ''}it needs {self.needs}, and {self.found}"


FROZEN = Lack("frozen parameters", "in this run they move")


class RefusalError(UserError):
    """An attack cannot run on a setting, which is no verdict: it says nothing about what another attack finds."""

    code = "E40"

    def __init__(self, attack: str, *lacks: Lack) -> None:
        super().__init__(attack, *lacks)
        self.attack, self.lacks = attack, lacks

    @property
    def reason(self) -> str:
        """Return all that is lacking."""
        return "; ".join(map(str, self.lacks))

    def __str__(self) -> str:
        return f"attack {self.attack} cannot run here: {self.reason}"
