"""The two panels of the ViT paper's Figure 12: throughput and the largest batch by image size."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from vitlab.files import staged_file, write_text
from vitlab.inspect.plots.canvas import blank, themed
from vitlab.pages.palette import SERIES
from vitlab.studies.picture import line_style
from vitlab.studies.whole import Measured

INCHES = (6.0, 4.2)
METADATA = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def throughput(rows: Sequence[Measured]) -> Figure:
    """Draw images per second at the best batch by image size, a line for each model of `whole`."""

    def of(size: Measured) -> float:
        best = size["inference"]["best"]
        return float(best["images_per_second"]) if best else 0.0

    return _panel(rows, of, "images per second, best batch")


def largest_batches(rows: Sequence[Measured]) -> Figure:
    """Draw the largest batch by image size: of a training step if it was measured, else inference.

    Args:
        rows: of `whole`
    """
    kind = "training" if any("training" in size for row in rows for size in row["sizes"]) else ""
    what = "training step" if kind else "forward pass"

    def of(size: Measured) -> float:
        return float(size.get(kind or "inference", {}).get("largest", {}).get("batch", 0))

    return _panel(rows, of, f"largest batch of a {what}")


def written(folder: Path, rows: Sequence[Measured], result: Measured) -> dict[str, str]:
    """Write both figures, as PNG and SVG, and the JSON; return where they are.

    Raises:
        DiskError: a file cannot be written.
    """
    places = {}
    for name, draw in (("throughput", throughput), ("largest-batch", largest_batches)):
        figure = draw(rows)
        for kind, metadata in METADATA.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=metadata)
            places[f"{name}_{kind}"] = str(folder / f"{name}.{kind}")
            with staged_file(folder / f"{name}.{kind}") as draft:
                draft.write_bytes(buffer.getvalue())
    write_text(folder / "measure.json", json.dumps(result, indent=2) + "\n")
    return places | {"figures": str(folder / "measure.json")}


def _panel(rows: Sequence[Measured], of: Callable[[Measured], float], unit: str) -> Figure:
    head = [rows[0][key] for key in ("device", "mode", "precision")]
    with themed(dark=False) as theme:
        figure = blank(INCHES, ", ".join(head))
        axes = figure.subplots()
        axes.grid(color=theme["line"], lw=0.6)
        colors = [theme[f"series{number}"] for number in range(len(SERIES))]
        for number, row in enumerate(rows):
            pixels = [_side(size["image_size"]) for size in row["sizes"]]
            values = np.array([of(size) for size in row["sizes"]])
            axes.plot(
                pixels,
                np.where(values > 0, values, np.nan),  # nothing fits: no point on a log axis
                label=row["model"],
                **line_style(number, colors),
            )
        _log_axes(axes, sorted({_side(s["image_size"]) for row in rows for s in row["sizes"]}))
        axes.set(xlabel="image size (pixels per side)", ylabel=unit)
        axes.legend(fontsize=9)
        return figure


def _log_axes(axes: Axes, sides: list[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    kept: list[float] = []
    for side in sides:  # labels of near sizes would cover each other
        if not kept or side >= 1.12 * kept[-1]:
            kept.append(side)
    axes.set_xticks(kept, [f"{side:.0f}" for side in kept])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _side(size: int | list[int] | tuple[int, int]) -> float:
    """Return the side of a square as large as the image."""
    return float(size) if isinstance(size, int) else float(np.sqrt(size[0] * size[1]))
