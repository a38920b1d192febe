"""A run's numbers on the page: the tiles below the verdict, what was run, what time and bytes took."""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from vfl.config.places import PLACES
from vfl.folder.schema import value_at
from vfl.folder.summary import Summary
from vfl.folder.words import setting_words, size

NOTHING = "–"


@dataclass(frozen=True)
class Tile:
    """One number that matters."""

    label: str
    value: Markup
    note: Markup | str = ""


def number(summary: Summary, key: str, form: str = "", unit: str = "") -> Markup:
    """Return a number of the summary for the page; its exact value and its key go with it."""
    value = value_at(summary, key)
    if value is None:
        return Markup(NOTHING)  # a constant  # nosec B704
    return _marked(key, value, format(value, form) + unit)


def _marked(key: str, value: Any, shown: str) -> Markup:
    return Markup('<data value="{}" data-key="{}">{}</data>').format(value, key, shown)


TILES = (
    ("attack.share_30db", "Images rebuilt", "share", "at 30 dB or better"),
    ("attack.share_exact", "Rows rebuilt", "share", "exact to 1e-3 of each range"),
    ("attack.r2", "R2, mean", ".4f", "over the columns"),
    ("attack.psnr_mean", "PSNR, mean", ".1f", "median {median}, worst {min}"),
    ("attack.mse_mean", "MSE, mean", ".1e", "the mean image: {mse}"),
    ("attack.psnr_slices", "PSNR of slices", ".1f", "each worker's part on its own"),
    ("attack.psnr_baseline", "Blind guess", ".1f", "PSNR of the mean image"),
    ("attack.ssim_mean", "SSIM, mean", ".4f", "the mean image: {ssim}"),
    ("attack.representation_error", "Inner layer", ".1e", "relative error, median"),
    ("attack.gain", "Beyond a guess", ".1%", "more values right, mean over the columns"),
    ("attack.label_accuracy", "Labels right", ".1%", "{labels}"),
    ("attack.certified", "Certified", "count", "explain their gradients; judged without the truth"),
    ("train.test_accuracy", "Test accuracy", ".1%", "of the model"),
)
"""Where a number is, what it is called, how it is written, and what to know of it."""


def tiles(summary: Summary) -> list[Tile]:
    """Return the numbers that matter most, those that there are."""
    shown = []
    others: dict[str, Any] = {name: number(summary, f"attack.psnr_{name}", ".1f") for name in ("median", "min")}
    labels = summary.attack.labels
    beside = f"a guess: {labels.guess or 0.0:.1%}; unknown: {labels.unknown or 0.0:.1%}" if labels else ""
    others["labels"] = beside or "of all samples"
    others["mse"] = number(summary, "attack.mse_baseline", ".1e")
    others["ssim"] = number(summary, "attack.ssim_baseline", ".4f")
    for key, label, form, note in TILES:
        value = value_at(summary, key)
        if value is None:
            continue
        if form in ("share", "count"):
            count, of = (round(value * summary.scored), summary.scored) if form == "share" else (value, summary.samples)
            text = _marked(key, value, str(count)) + Markup(" <small>of {}</small>").format(of)
        else:
            text = number(summary, key, form, " dB" if ".psnr_" in key else "")
        shown.append(Tile(label, text, Markup(note).format(**others) if "{" in note else note))  # nosec B704
    return shown


def setting_line(summary: Summary) -> list[str]:
    """Say in a few words what was run."""
    config = summary.config
    data, model, attack = ((part.name if part else "?") for part in (config.data, config.model, config.attack))
    parts = [f"data {data}", *setting_words(summary), f"model {model}", f"attack {attack}"]
    return [*parts, f"defence {defence_words(config.defence)}", f"seed {summary.seed}"]


def defence_words(defence: Any) -> str:
    """Name the defences of a config: one, a chain, or different ones at different workers."""
    if isinstance(defence, list | tuple):
        return " then ".join(map(defence_words, defence)) or "none"
    if isinstance(defence, dict) and isinstance(defence.get("workers"), dict):
        parts = [f"{defence_words(one)} at worker {worker}" for worker, one in defence["workers"].items()]
        return ", ".join([*parts, f"{defence_words(defence.get('others'))} at the others"])
    if isinstance(defence, dict) and any(place in defence for place in PLACES):
        return ", ".join(f"{defence_words(defence[place])} on {place}" for place in PLACES if place in defence)
    return str(defence.get("name", "none")) if isinstance(defence, dict) else "none"


def phases(summary: Summary) -> list[tuple[str, Markup | str, str]]:
    """Return where the time went, and the bytes."""
    seconds, wire = summary.seconds, summary.bytes
    up, down, peer = map(size, (wire.up, wire.down, wire.peer))
    ways = f"{up} up to the coordinator, {down} down to the workers, {peer} from worker to worker"
    rest = (seconds.total or 0.0) - (seconds.federation or 0.0) - (seconds.attack or 0.0)
    return [
        ("Starting and joining", f"{max(0.0, rest):.1f} s", ""),
        ("Rounds of the federation", number(summary, "seconds.federation", ".1f", " s"), ways),
        ("The attack, after the last round", number(summary, "seconds.attack", ".1f", " s"), ""),
        ("In all", number(summary, "seconds.total", ".1f", " s"), ""),
    ]
