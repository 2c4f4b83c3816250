"""Values layer by layer, as an inline drawing of a few kilobytes that is made in a millisecond."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from vitlab.report.drawings.drawing import WIDTH

Numbers = NDArray[np.float32]

HIGH = 210  # pixels
TOP, RIGHT, BOTTOM, LETTER = 8, 8, 38, 6.8
NAMED = 400  # points whose names a pointer shows; those of more would make a large file


@dataclass(frozen=True)
class LayerLine:
    """A value for each layer.

    Attributes:
        name: what it is
        values: (layers,)
        color: of the page: blue, warm or muted
        dashed: whether the line is, so that it is told apart without its color
    """

    name: str
    values: Numbers
    color: str = "blue"
    dashed: bool = False


def layer_chart(
    label: str,
    unit: str,
    lines: Sequence[LayerLine],
    *,
    points: Numbers | None = None,
    first: int = 0,
) -> Markup:
    """Draw lines, and a point for each head, against layers.

    Args:
        label: what is drawn, for those who do not see it
        unit: of the values
        lines: at least one, all of the same layers
        points: (layers, heads); their axis begins at 0
        first: number of the first layer
    """
    values = [each.values for each in lines] if points is None else [points]
    low, high = _ends(np.concatenate([np.ravel(each) for each in values]), points is not None)
    frame = _Frame(first, len(lines[0].values), low, high)
    parts = [*frame.drawn(unit)]
    if points is not None:
        parts += frame.points(points, unit)
    parts += [frame.line(line, marked=points is None) for line in lines]
    words = "; ".join(_told(line, first) for line in lines)
    return Markup(
        f'<svg class="plot" style="--w:{WIDTH}px" viewBox="0 0 {WIDTH} {HIGH}" role="img" '
        f'font-size="12" aria-label="{escape(label)}: {escape(words)}.">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True)
class _Frame:
    """Two axes: layers, and the range of the values."""

    first: int
    layers: int
    low: float
    high: float

    @property
    def ticks(self) -> list[float]:
        """The values that the axis names."""
        found = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [float(tick) for tick in found if self.low <= tick <= self.high]

    @property
    def left(self) -> float:
        """Where the axis of the values stands, in pixels."""
        return 22 + LETTER * max((len(_short(tick)) for tick in self.ticks), default=1)

    def x(self, layer: float) -> float:
        """Return the place of a layer, in pixels."""
        room = WIDTH - RIGHT - self.left - 16
        return self.left + 8 + room * (layer - self.first) / max(self.layers - 1, 1)

    def y(self, value: float) -> float:
        """Return the place of a value, in pixels."""
        return TOP + (HIGH - TOP - BOTTOM) * (self.high - value) / (self.high - self.low)

    def drawn(self, unit: str) -> Iterator[str]:
        """Yield the grid, the numbers at it, and what they are."""
        text, floor = 'fill="var(--muted)"', HIGH - BOTTOM
        for tick in self.ticks:
            y = f"{self.y(tick):.1f}"
            yield (
                f'<path d="M{self.left:.1f} {y}H{WIDTH - RIGHT}" stroke="var(--line)"/>'
                f'<text x="{self.left - 5:.1f}" y="{y}" dy=".35em" text-anchor="end" {text}>'
                f"{_short(tick)}</text>"
            )
        last = self.first + self.layers - 1
        for tick in MaxNLocator(6, integer=True).tick_values(self.first, last):
            if self.first <= tick <= last and tick == int(tick):
                x = f"{self.x(float(tick)):.1f}"
                yield (
                    f'<text x="{x}" y="{floor + 16}" text-anchor="middle" {text}>{tick:.0f}</text>'
                )
        middle = (self.left + WIDTH - RIGHT) / 2
        yield (
            f'<text x="{middle:.1f}" y="{HIGH - 4}" text-anchor="middle" {text}>layer</text>'
            f'<text transform="translate(12 {(TOP + floor) / 2:.1f}) rotate(-90)" '
            f'text-anchor="middle" {text}>{escape(unit)}</text>'
        )

    def points(self, values: Numbers, unit: str) -> Iterator[str]:
        """Yield a point for each head; its name, where there are not too many, is a title."""
        yield '<g fill="var(--blue)" fill-opacity=".55">'
        for layer, row in enumerate(values, self.first):
            for head, value in enumerate(row.tolist(), 1):
                if np.isfinite(value):
                    name = f"layer {layer}, head {head}: {_short(value)} {unit}"
                    title = f"<title>{escape(name)}</title>" if values.size <= NAMED else ""
                    place = f'cx="{self.x(layer):.1f}" cy="{self.y(value):.1f}"'
                    yield f'<circle {place} r="3">{title}</circle>'
        yield "</g>"

    def line(self, line: LayerLine, *, marked: bool) -> str:
        """Return a line; `marked` draws its points too."""
        places = [
            (self.x(layer), self.y(float(value)))
            for layer, value in enumerate(line.values, self.first)
            if np.isfinite(value)
        ]
        color = f"var(--{line.color})"
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"{dash}/>'
        if marked:
            dots = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in places)
            drawn += f'<g fill="{color}">{"".join(dots)}</g>'
        return drawn


def _ends(values: Numbers, from_zero: bool) -> tuple[float, float]:
    """Return the ends of an axis, with a little room beyond the values."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if from_zero:
        low = min(low, 0.0)
    room = max(0.05 * (high - low), 1e-6 * max(abs(high), 1.0))
    return (low if from_zero else low - room), high + room


def _told(line: LayerLine, first: int) -> str:
    """Return a line in words."""
    last = first + len(line.values) - 1
    ends = (_short(float(line.values[place])) for place in (0, -1))
    start, end = ends
    return f"{line.name} {start} in layer {first}, {end} in layer {last}"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
