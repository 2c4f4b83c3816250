"""What all drawings have in common: their colors, their style, and how they become SVG.

Plots have no colors of their own: they are drawn in placeholder colors that become CSS variables,
so that one drawing serves the light page, the dark page and the printer.
"""

import html
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitlab.report.drawings.theme import LIGHT, SERIES

# placeholder color -> CSS variable
INK, MUTED, LINE = "#010101", "#020202", "#030303"
BLUE, WARM, CARD = "#040404", "#050505", "#060606"
SERIES_COLORS = tuple(f"#0707{number:02x}" for number in range(len(SERIES)))
_VARIABLES = {
    INK: "ink", MUTED: "muted", LINE: "line", BLUE: "blue", WARM: "warm", CARD: "card",
    **{color: f"series{number}" for number, color in enumerate(SERIES_COLORS)},
}  # fmt: skip
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "vitlab",
    "text.parse_math": False,
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
}
WIDTH = 326  # of a drawing that a phone shows at its full size, so that its text stays readable
_LARGEST = 1e30  # a larger loss is practically infinite, and would overflow the axes


def finite(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the values as float64 (n,), NaN where one cannot be drawn."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(array) < _LARGEST, array, np.nan)


def new_figure(width: int, height: int) -> Figure:
    """Return a figure whose units are the page's pixels (72 points and 72 pixels per inch)."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
    figure.patch.set_visible(False)
    return figure


def svg(figure: Figure, name: str, label: str) -> Markup:
    """Return the figure as an inline `<svg>` with the page's colors and unique ids."""
    for axes in figure.axes:
        axes.patch.set_visible(False)
        axes.tick_params(length=0)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)  # the page's own
    for color, variable in _VARIABLES.items():
        body = body.replace(color, f"var(--{variable})")
    width, height = (round(side * 72) for side in figure.get_size_inches())
    return Markup(
        f'<svg class="plot" style="--w:{width}px" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(label)}">{body}'
    )


def standalone(drawing: Markup) -> str:
    """Return an inline drawing as the text of an SVG file of its own, on white."""
    text = re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found[1]], str(drawing))
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    style = 'style="background:#fff" font-family="sans-serif"'
    width, height = re.findall(r'viewBox="0 0 (\d+) (\d+)"', text)[0]
    return re.sub(
        r'<svg class="plot" style="[^"]*"',
        f'<svg {names} width="{width}" height="{height}" {style}',
        text,
        count=1,
    )
