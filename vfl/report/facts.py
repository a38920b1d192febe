"""A run's numbers in words: the tiles below the verdict, what was run, where time and bytes went."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from vfl.folder.show import size
from vfl.report.folder import RunFolder

NOTHING = "–"


@dataclass(frozen=True)
class Tile:
    """One number that matters."""

    label: str
    value: Markup
    note: Markup | str = ""


def number(summary: dict[str, Any], key: str, form: str, unit: str = "", text: str | None = None) -> Markup:
    """Return a number of the summary for the page; its exact value and its key go with it."""
    value = value_at(summary, key)
    if value is None:
        return Markup(NOTHING)  # a constant  # nosec B704
    shown = format(value, form) + unit if text is None else text
    return Markup('<data value="{}" data-key="{}">{}</data>').format(value, key, shown)


def value_at(tree: Any, key: str) -> Any:
    """Return what stands at a dotted key, or None."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def tiles(run: RunFolder) -> list[Tile]:
    """Return the numbers that matter most, those that there are."""
    summary, samples = run.summary, run.summary.get("samples")

    def of_all(key: str, share: bool = True) -> Markup:
        value = value_at(summary, key)
        count = None if value is None or samples is None else round(value * samples if share else value)
        return number(summary, key, "", text=str(count)) + Markup(" <small>of {}</small>").format(samples)

    def psnr_note() -> Markup:
        median, worst = (number(summary, f"attack.psnr_{name}", ".1f") for name in ("median", "min"))
        return Markup("median {}, worst {}").format(median, worst)

    found: list[tuple[str, str, Callable[[], Markup], Callable[[], Markup] | str]] = [
        ("attack.share_30db", "Images rebuilt", lambda: of_all("attack.share_30db"), "at 30 dB or better"),
        ("attack.share_exact", "Rows rebuilt", lambda: of_all("attack.share_exact"), "exact to 1e-3 of each range"),
        ("attack.r2", "R2, mean", lambda: number(summary, "attack.r2", ".4f"), "over the columns"),
        ("attack.psnr_mean", "PSNR, mean", lambda: number(summary, "attack.psnr_mean", ".1f", " dB"), psnr_note),
        (
            "attack.psnr_baseline",
            "Blind guess",
            lambda: number(summary, "attack.psnr_baseline", ".1f", " dB"),
            "PSNR of the mean image",
        ),
        ("attack.ssim_mean", "SSIM, mean", lambda: number(summary, "attack.ssim_mean", ".4f"), "1 is the same image"),
        (
            "attack.representation_error",
            "Inner layer",
            lambda: number(summary, "attack.representation_error", ".1e"),
            "relative error, median",
        ),
        (
            "attack.label_accuracy",
            "Labels right",
            lambda: number(summary, "attack.label_accuracy", ".1%"),
            "of all samples",
        ),
        ("attack.certified", "Certified", lambda: of_all("attack.certified", share=False), "without the truth"),
        ("train.test_accuracy", "Test accuracy", lambda: number(summary, "train.test_accuracy", ".1%"), "of the model"),
    ]
    there = [one for one in found if value_at(summary, one[0]) is not None]
    return [Tile(label, value(), note if isinstance(note, str) else note()) for _, label, value, note in there]


def setting_line(summary: dict[str, Any]) -> list[str]:
    """Say in a few words what was run."""
    config = summary["config"]
    names = {part: (config.get(part) or {}).get("name", "?") for part in ("data", "model", "attack")}
    kind = " (horizontal)" if summary.get("shares") else ""
    counts = [
        f"{summary.get('workers')} workers{kind}",
        f"{summary['samples']} samples" if summary.get("samples") else "",
    ]
    counts.append(f"{summary.get('rounds')} rounds of {summary.get('batch_size')}{' each' if kind else ''}")
    parts = [f"data {names['data']}", *counts, f"model {names['model']}", f"attack {names['attack']}"]
    parts += [f"defence {defence_words(config.get('defence'))}", f"seed {summary.get('seed')}"]
    return [part for part in parts if part]


def defence_words(defence: Any) -> str:
    """Name the defences of a config: one, a chain, or different ones at different workers."""
    if isinstance(defence, list | tuple):
        return " then ".join(map(defence_words, defence)) or "none"
    if isinstance(defence, dict) and isinstance(defence.get("workers"), dict):
        parts = [f"{defence_words(one)} at worker {worker}" for worker, one in defence["workers"].items()]
        return ", ".join([*parts, f"{defence_words(defence.get('others'))} at the others"])
    return str(defence.get("name", "none")) if isinstance(defence, dict) else "none"


def phases(summary: dict[str, Any]) -> list[tuple[str, Markup | str, str]]:
    """Return where the time went, and the bytes."""
    seconds, wire = summary["seconds"], summary["bytes"]
    told = [f"{size(wire[way])} {words}" for way, words in _WAYS.items() if wire.get(way) is not None]
    rest = (seconds.get("total") or 0.0) - (seconds.get("federation") or 0.0) - (seconds.get("attack") or 0.0)
    return [
        ("Starting and joining", f"{max(0.0, rest):.1f} s", ""),
        ("Rounds of the federation", number(summary, "seconds.federation", ".1f", " s"), ", ".join(told)),
        ("The attack, after the last round", number(summary, "seconds.attack", ".1f", " s"), ""),
        ("In all", number(summary, "seconds.total", ".1f", " s"), ""),
    ]


_WAYS = {"up": "up to the coordinator", "down": "down to the workers", "peer": "from worker to worker"}
