"""`explain`: what the code means that an error's sentence ends with."""

from typing import Annotated

import typer

from vfl.error_codes import CODES
from vfl.errors import UserError


def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="As in [E20]; all codes without it.", autocompletion=lambda: list(CODES)),
    ] = None,
) -> None:
    """Say what an error's code means, and what to do about it."""
    if code is None:
        for name, kind in CODES.items():
            print(f"{name}  {kind.title}")
        return
    name = code.strip("[]").upper()
    if name not in CODES:
        raise UserError(f"cafe explain {code}: there is no such code; `cafe explain` lists them")
    kind = CODES[name]
    print(f"{name}: {kind.title}\n\n{kind.means}\n{kind.do}")
