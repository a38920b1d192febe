"""What the attack's numbers look like: PSNR over rounds and images, certificates, the map of what leaked where."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from vfl.folder.measured import certified_and_wrong
from vfl.folder.scores import ColumnScore
from vfl.maths.metrics import PSNR_CAP, REBUILT
from vfl.recovery import CERTIFIED
from vfl.report.figures import INK, ONE, THREE, TWO, Plot, draw, is_bright, over_rounds
from vfl.report.folder import RunFolder

MOST_LABELS = 16
MOST_BARS = 40


def psnr_over_rounds(run: RunFolder) -> Plot | None:
    """Return how far the attack had got after which round."""
    attack, tabular = run.summary.attack, run.kind == "table"
    steps = [(step.round, step.r2 if tabular else step.psnr_mean) for step in attack.over_rounds or []]
    points = [(number, value) for number, value in steps if value is not None]
    if not points:
        return None
    rounds, values = zip(*points, strict=True)
    title, unit = ("R2 over the rounds", "R2") if tabular else ("PSNR over the rounds", "mean PSNR (dB)")

    def paint(axes: Axes) -> None:
        axes.plot(rounds, values, marker="o", markersize=3.5, color=ONE)
        if not tabular and attack.psnr_baseline is not None:
            guess, words, across = attack.psnr_baseline, "guessing the mean image", axes.get_yaxis_transform()
            axes.axhline(guess, color=TWO, linewidth=1.2)
            axes.text(0.99, guess, words, transform=across, ha="right", va="bottom", color=TWO, size=8)
        over_rounds(axes)
        axes.set_ylabel(unit)

    first, last = points[0], points[-1]
    alt = f"{title}: {first[1]:.1f} after round {first[0]}, {last[1]:.1f} after round {last[0]}."
    return Plot(title, draw("over-rounds", alt, paint), f"The attack's estimate at {len(points)} moments of the run.")


def psnr_histogram(run: RunFolder) -> Plot | None:
    """Return how many images were rebuilt how well."""
    values = run.psnr
    if values is None or not len(values):
        return None

    def paint(axes: Axes) -> None:
        axes.hist(np.clip(values, 0, PSNR_CAP), bins=list(range(0, 101, 5)), color=ONE, rwidth=0.86)
        axes.axvline(REBUILT, color=INK, linewidth=1, linestyle=(0, (3, 3)))
        axes.text(REBUILT, 1.02, "30 dB", transform=axes.get_xaxis_transform(), ha="center", color=INK, size=8)
        baseline = run.summary.attack.psnr_baseline
        if baseline is not None:
            axes.axvline(baseline, color=TWO, linewidth=1.2)
            axes.text(baseline, 1.02, "guessing", transform=axes.get_xaxis_transform(), ha="center", color=TWO, size=8)
        axes.set_xlim(0, PSNR_CAP)
        axes.set_xlabel("PSNR of an image (dB); 100 is the cap")
        axes.set_ylabel("images")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))

    good = int((values >= REBUILT).sum())
    alt = (
        f"Histogram of PSNR over {len(values)} images: {good} at 30 dB or better, lowest {values.min():.1f} dB, "
        f"median {np.median(values):.1f} dB, highest {values.max():.1f} dB."
    )
    words = "Orange: what guessing the mean image scores. Dashed: 30 dB, from which an image counts as rebuilt."
    return Plot("How well each image was rebuilt", draw("histogram", alt, paint), words)


def certificate_histogram(run: RunFolder) -> Plot | None:
    """Return how well the recovered samples explain the gradients, which needs no truth."""
    worst = run.certificates
    if worst is None:
        return None
    known = np.isfinite(worst)
    if not known.any():
        return None
    powers = np.log10(np.clip(worst[known], 1e-12, 1e3))
    low, high = math.floor(min(powers.min(), math.log10(CERTIFIED)) - 0.5), math.ceil(max(powers.max(), 0.0))
    bins = np.arange(low, high + 0.5, 0.5).tolist()
    right = run.psnr[known] >= REBUILT if run.psnr is not None and len(run.psnr) == len(worst) else None

    def paint(axes: Axes) -> None:
        if right is None:
            axes.hist(powers, bins=bins, color=ONE, rwidth=0.86)
        else:
            names = ["30 dB or better", "below 30 dB"]
            both = [powers[right], powers[~right]]
            axes.hist(both, bins=bins, color=[ONE, TWO], stacked=True, rwidth=0.86, label=names)
            axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
        axes.axvline(math.log10(CERTIFIED), color=INK, linewidth=1, linestyle=(0, (3, 3)))
        step = max(1, math.ceil((high - low) / 5))
        ticks = list(range(low, high + 1, step))
        axes.set_xticks(ticks, [f"1e{tick:+03d}" for tick in ticks])
        axes.set_xlabel("a sample's worst certificate")
        axes.set_ylabel("samples")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))

    below = int((worst[known] < CERTIFIED).sum())
    alt = f"Histogram of certificates: {below} of {len(worst)} samples are below {CERTIFIED:g}."
    words = "How far off a sample may be, by the gradients alone. "
    words += f"Left of the dashed line, {CERTIFIED:g}, it is certified{certified_and_wrong(run.summary.attack.name)}."
    return Plot("Certificates", draw("certificates", alt, paint), words)


def leak_map(run: RunFolder) -> Plot | None:
    """Return the mean PSNR of every pixel over the images, with the workers' slices."""
    if run.psnr is None or run.x is None or run.truth is None or run.runs:
        return None
    if len(run.summary.attack.parties) != len(run.boxes):
        return None
    error = np.clip(run.x.astype(np.float64), 0, 1) - run.truth
    with np.errstate(divide="ignore"):
        pixels = np.minimum(PSNR_CAP, -10 * np.log10(np.square(error).mean(axis=1))).mean(axis=0)
    height, width = pixels.shape
    slices = [party.psnr or 0.0 for party in run.summary.attack.parties]

    def paint(axes: Axes) -> None:
        shown = axes.imshow(pixels, vmin=0, vmax=PSNR_CAP, cmap="viridis", interpolation="nearest")
        for worker, box in enumerate(run.boxes):
            (top, left), (bottom, right) = box.start[-2:], box.stop[-2:]
            frame = Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, fill=False, color="white", lw=1.2)
            axes.add_patch(frame)
            if len(run.boxes) <= MOST_LABELS:
                bright = is_bright(colormaps["viridis"](slices[worker] / PSNR_CAP))
                text = f"worker {worker}\n{slices[worker]:.1f} dB"
                place = ((left + right - 1) / 2, (top + bottom - 1) / 2)
                axes.text(*place, text, ha="center", va="center", size=8, color="black" if bright else "white")
        axes.set_axis_off()
        bar = axes.figure.colorbar(shown, ax=axes, shrink=0.9, pad=0.03)
        bar.outline.set_visible(False)
        bar.set_label("PSNR of a pixel, mean over the images (dB)", size=8)

    each = ", ".join(f"worker {worker}: {value:.1f} dB" for worker, value in enumerate(slices[:MOST_LABELS]))
    alt = f"Map of the {height} by {width} pixels and what leaked of each. Mean PSNR by slice: {each}."
    return Plot("Each worker's part of the image", draw("map", alt, paint, (4.2, 3.3)), "Bright: rebuilt. Dark: kept.")


def column_bars(columns: Sequence[ColumnScore]) -> Plot | None:
    """Return how much of each column leaked; if there are many, of those that leaked least."""
    known = [(column, column.best.right) for column in columns if column.best.right is not None]
    if not known:
        return None
    kept = sorted(known, key=lambda one: one[1])[:MOST_BARS] if len(known) > MOST_BARS else known
    colours = [(ONE, TWO, THREE)[(column.worker or 0) % 3] for column, _ in kept]

    def paint(axes: Axes) -> None:
        axes.barh(range(len(kept)), [max(0.0, score) for _, score in kept], color=colours, height=0.7)
        axes.set_yticks(range(len(kept)), [_short(column) for column, _ in kept])
        axes.tick_params(axis="y", labelsize=7.5)
        axes.margins(y=0.01)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_xlim(0, 1)
        guesses = [column.best.guess or 0.0 for column, _ in kept]
        axes.vlines(guesses, [at - 0.45 for at in range(len(kept))], [at + 0.45 for at in range(len(kept))], color=INK)
        axes.set_xlabel("share of the values that are right; a line: a guess")

    scores = [score for _, score in kept]
    alt = f"What leaked of {len(kept)} columns: from {min(scores):.4f} to {max(scores):.4f}, where 1 is all."
    words = "Numbers within a thousandth or a twentieth of their range, whichever gains more over a guess."
    words += f" The {len(kept)} columns that leaked least, of {len(known)}." if len(kept) < len(known) else ""
    return Plot("What leaked of each column", draw("columns", alt, paint, (4.2, 0.8 + 0.2 * len(kept))), words)


def _short(column: ColumnScore) -> str:
    name = str(column.name)
    name = name if len(name) <= 22 else name[:21] + "…"
    return name if column.worker is None else f"{name} · worker {column.worker}"
