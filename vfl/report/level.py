"""How much leaked, in a word or two: of a scored attack, against what a blind guess gives."""

from typing import Any

from vfl.folder.show import untested

MARGIN_DB = 1.0
"""A mean PSNR so little above that of the mean image tells nothing."""

MARGIN_R2 = 0.1
"""So little of a column's variance tells nothing; guessing the mean has an R2 of 0."""


def level(summary: dict[str, Any]) -> tuple[str, str]:
    """Return a class for the colour, and the words."""
    found = _leaked(summary)
    return ("open", "defence not tested for real") if found[0] == "held" and untested(summary) else found


def _leaked(summary: dict[str, Any]) -> tuple[str, str]:
    attack = summary["attack"]
    if attack.get("share_30db") is not None:
        gained = attack["psnr_mean"] - attack["psnr_baseline"]
        return _by_share(attack["share_30db"], gained > MARGIN_DB)
    if attack.get("share_exact") is not None:
        return _by_share(attack["share_exact"], (attack.get("r2") or 0.0) > MARGIN_R2)
    if attack.get("representation_error") is not None:
        return ("leaked", "inner layer leaked") if attack["representation_error"] < 0.1 else ("partly", "see the error")
    if summary.get("ended", "complete") != "complete":
        return "open", "not finished"
    return "open", "not scored" if attack["used"] else "no attack"


def _by_share(share: float, gained: bool) -> tuple[str, str]:
    if share >= 0.5:
        return "leaked", "all leaked" if share == 1 else "mostly leaked"
    if share > 0 or gained:
        return "partly", "partly leaked"
    return "held", "held against this attack"
