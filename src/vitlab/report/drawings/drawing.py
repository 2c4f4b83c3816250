"""Figures of matplotlib as inline SVG in the colors of the page, light, dark or printed.

They are drawn in the colors of the light page, each of which becomes the CSS variable of its name.
"""

import html
import io
import re
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitlab.report.drawings.theme import LIGHT, SERIES

INK, MUTED, LINE, BLUE, WARM = (LIGHT[name] for name in ("ink", "muted", "line", "blue", "warm"))
SERIES_COLORS = tuple(light for light, _ in SERIES)
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
NO_METADATA = dict.fromkeys(
    ("Creator", "Date", "Format", "Type")
)  # the same bytes for the same figure
WIDTH = 326  # of a drawing that a phone shows at its full size, so that its text stays readable
_LARGEST = 1e30  # a larger loss is practically infinite, and would overflow the axes


def finite(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the values as float64 (n,), NaN where one cannot be drawn."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(array) < _LARGEST, array, np.nan)


def new_figure(width: int, height: int) -> Figure:
    """Return a figure whose units are the page's pixels (72 points and 72 pixels per inch)."""
    return Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def svg(figure: Figure, name: str, label: str, width: int = 0) -> Markup:
    """Return a figure as an inline `<svg>` with the page's colors and unique ids.

    Args:
        figure: drawn in the colors of the light page
        name: unique on the page
        label: what it shows, for those who do not see it
        width: pixels that it is brought to, at the same height; 0 to keep its own
    """
    if width:
        figure.set_size_inches(width / 72, figure.get_size_inches()[1])
        figure.set_dpi(72)
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
        axes.tick_params(length=0)
    buffer = io.StringIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the page's fonts have more of them
        figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)  # the page's own
    for variable, color in LIGHT.items():
        body = body.replace(color, f"var(--{variable})")
    wide, high = (round(side * 72) for side in figure.get_size_inches())
    return Markup(
        f'<svg class="plot" style="--w:{wide}px" viewBox="0 0 {wide} {high}" role="img" '
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
