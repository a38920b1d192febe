"""audit.html: the audit's document as one file that needs no network, in the report's looks."""

from functools import partial
from urllib.parse import quote

from vfl.audit.document import chapters
from vfl.audit.document.parts import LABELS, Facts, Grid, Words
from vfl.audit.schema import Audit
from vfl.report.page import render

FILE = "audit.html"


def audit_page(audit: Audit) -> str:
    """Return the page."""
    return render(
        "audit.html",
        audit=audit,
        label=LABELS[audit.verdict] if audit.verdict != "guess" else "held against the attacks tried",
        chapters=chapters(audit),
        kinds={Grid: "grid", Facts: "facts", Words: "words"},
        tiles=_tiles(audit),
        quoted=partial(quote, safe="/#"),
    )


def _tiles(audit: Audit) -> list[tuple[str, str, str]]:
    done = [one for one in audit.attempts if one.outcome == "done"]
    other = len(audit.attempts) - len(done)
    tiles = [("Attempts", str(len(done)), f"{other} more were refused or not finished")]
    worst = max((one.beyond for one in audit.findings if one.defence == audit.base), default=None)
    tiles += [] if worst is None else [("Known at most", f"{worst:.2f}", "of what a guess leaves open")]
    tiles.append(("Rounds recorded", str(audit.training.rounds), f"of {audit.training.planned or 'so many'} planned"))
    tiles += [] if audit.samples is None else [("Samples", str(audit.samples), "people, cases, images")]
    judged = sum(one.outcome == "done" and one.worst is not None for one in audit.trials)
    tiles += [("Defences tried", str(judged), f"limit {audit.limit:g}")]
    tiles.append(("Time", f"{audit.seconds:.0f} s", f"of {audit.budget:.0f} s"))
    return tiles
