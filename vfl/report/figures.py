"""Matplotlib figures as SVG within the page: its colours are the page's, in light and in dark."""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from cycler import cycler
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, MUTED, LINE, ONE, TWO, THREE = "#010203", "#010204", "#010205", "#010206", "#010207", "#010208"
"""Stand-ins: a figure is drawn in these, and the page's own colours are put in their place."""

_VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line", ONE: "--one", TWO: "--two", THREE: "--three"}

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cafe",
    "text.parse_math": False,  # names from a config are text, whatever they look like
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=[ONE, TWO, THREE]),
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": MUTED,
    "lines.linewidth": 1.6,
    "xtick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.color": LINE,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0.0,
}


@dataclass(frozen=True)
class Plot:
    """A figure with its heading and a sentence below it."""

    title: str
    svg: Markup
    words: str = ""


def draw(name: str, alt: str, paint: Callable[[Axes], None], size: tuple[float, float] = (4.2, 2.5)) -> Markup:
    """Return a figure with one pair of axes as inline SVG; `name` is unique on the page."""
    text = io.StringIO()
    with rc_context(_STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph")  # the browser has the fonts, not matplotlib
        figure = Figure(figsize=size, layout="constrained")
        paint(figure.subplots())
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _inline(text.getvalue(), name, alt)


def over_rounds(axes: Axes) -> None:
    """Let the horizontal axis count rounds."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _inline(svg: str, name: str, alt: str) -> Markup:
    """Take from an SVG file what the page has itself, and name its parts so that two figures do not clash."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="([-\d. ]+)"', svg)
    assert box is not None
    opening = f'<svg class="plot" role="img" aria-label="{escape(alt)}" viewBox="{box[1]}">'
    svg = opening + svg[svg.index(">") + 1 :]
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\1{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return Markup(svg)  # drawn by matplotlib, which escapes the texts in it  # nosec B704


def is_bright(colour: Sequence[float]) -> bool:
    """Tell whether black is easier to read on a colour than white."""
    return float(np.dot(colour[:3], (0.299, 0.587, 0.114))) > 0.5
