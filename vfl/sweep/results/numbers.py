"""The numbers of a run that a sweep collects: where each is in `summary.json`, its unit, and which way is better."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """One number of a run; its key is its place in `summary.json`, or one that `derived` adds."""

    key: str
    label: str
    unit: str = ""
    form: str = ".3g"
    highest_is_best: bool = False
    limits: tuple[float, float] | None = None

    @property
    def title(self) -> str:
        """Return the label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def text(self, value: float) -> str:
        """Write a value as a person wants to read it."""
        return format(value, self.form)


def _psnr(which: str, label: str) -> Number:
    return Number(f"attack.psnr_{which}", label, "dB", ".1f", highest_is_best=True)


def _share(key: str, label: str) -> Number:
    return Number(key, label, "", ".3f", highest_is_best=True, limits=(0.0, 1.0))


NUMBERS = {
    number.key: number
    for number in (
        _psnr("mean", "PSNR, mean"),
        _psnr("median", "PSNR, median"),
        _psnr("min", "PSNR, worst"),
        _psnr("baseline", "PSNR of guessing the mean image"),
        _share("attack.ssim_mean", "SSIM, mean"),
        _share("attack.share_30db", "share of images at 30 dB or better"),
        _share("attack.label_accuracy", "share of labels right"),
        Number("attack.r2", "R2", "", ".3f", highest_is_best=True),
        _share("attack.share_exact", "share of rows exact"),
        Number("attack.representation_error", "relative error of representations", "", ".1e"),
        Number("train.loss_first", "loss in the first round", "", ".4f"),
        Number("train.loss_last", "loss in the last round", "", ".4f"),
        Number("train.loss_end", "training loss, last 5 % of rounds", "", ".4f"),
        _share("train.test_accuracy", "test accuracy"),
        Number("seconds.total", "time in all", "s"),
        Number("seconds.federation", "time of the federation", "s"),
        Number("seconds.attack", "time of the attack", "s"),
        Number("seconds.round", "time a round", "s"),
        Number("rounds", "rounds", "", ".0f"),
        Number("bytes.up", "uploaded", "bytes"),
        Number("bytes.down", "downloaded", "bytes"),
        Number("bytes.peer", "between workers", "bytes"),
        Number("bytes.round", "on the wire a round", "bytes"),
    )
}


def numbers_of(summary: dict[str, Any]) -> dict[str, float | None]:
    """Return every number that a summary holds or that follows from it; the others are None."""
    extra = derived(summary)
    return {key: extra[key] if key in extra else _at(summary, key) for key in NUMBERS}


def derived(summary: dict[str, Any]) -> dict[str, float | None]:
    """Return what the summary does not say in so many words."""
    losses, rounds, rate = summary["train"].get("losses") or [], summary["rounds"], summary.get("rounds_per_second")
    last = losses[-max(1, math.ceil(len(losses) / 20)) :]
    size = sum(summary["bytes"][way] for way in ("up", "down", "peer"))
    # The rate leaves the first tenth out, in which everybody warms up; very short runs have none.
    slow = summary["seconds"]["federation"] / rounds if rounds else None
    return {
        "train.loss_end": sum(last) / len(last) if last and None not in last else None,
        "seconds.round": 1 / rate if rate else slow,
        "bytes.round": size / rounds if rounds else None,
    }


def _at(tree: Any, key: str) -> float | None:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree if isinstance(tree, int | float) else None
