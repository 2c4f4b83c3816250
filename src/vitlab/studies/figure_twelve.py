"""Images per second and the largest batch by image size: measured, drawn (ViT, Figure 12)."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from vitlab.files import staged_file, write_text
from vitlab.inspect.plots.canvas import blank, themed
from vitlab.pages.palette import SERIES
from vitlab.recipes.recipe import Host
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.runs.naming import folder_name
from vitlab.studies.picture import DASHES, MARKERS
from vitlab.studies.results import markdown
from vitlab.studies.study_names import PAPER_BUDGET
from vitlab.studies.whole import How, Measured, whole
from vitlab.units import seconds, storage

PAPER = ("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16", "ViT-H/14", "BiT-R50x1", "BiT-R50x2",
         "BiT-R152x2", "BiT-R200x3")  # fmt: skip
SMALL = ("ViT-Ti/16", "ViT-S/32", "ViT-S/16", "BiT-R50x1")
PAPER_SIZES, SIZES = (64, 128, 224, 384, 512), (64, 128, 224)
TITLE = "Speed by image size"
STEP = 14  # ViT-H/14 takes multiples of its patch: other sizes are rounded for it
POINTS = 22.0  # times its seconds that a figure takes: the search for the best batch included
LEAST, MOST = 0.02, 5.0  # seconds for a figure
HEAD = ("model", "image size", "images/s", "at batch", "largest batch", "memory at best batch")
INCHES = (6.0, 4.2)
METADATA = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def study(
    allowed: str = "", out: str | Path | None = None, host: Host | None = None, command: str = ""
) -> dict[str, Any]:
    """Measure inference of each model at each image size.

    Args:
        allowed: time for everything, such as 10m; `paper` for the models of the paper's figure
        out: folder for table, pictures and page; None for `runs/study-speed-DEVICE`
        host: whose device is measured
        command: what the user typed

    Returns:
        The JSON of `vitlab study speed`.

    Raises:
        DeviceError: a missing device, or one that is too small for a model's weights.
        DiskError: a file cannot be written.
    """
    paper, host = allowed == PAPER_BUDGET, host or Host()
    names, sizes = (PAPER, PAPER_SIZES) if paper else (SMALL, SIZES)
    budget = seconds("2h" if paper else allowed or "10m")
    each = budget / (len(names) * len(sizes) * POINTS)
    how = How(
        mode="accelerated", device=host.device, seconds=min(max(each, LEAST), MOST), training=False
    )
    rows = []
    for name in names:
        fitting = tuple(size // STEP * STEP for size in sizes) if name.endswith("/14") else sizes
        rows += whole([name], replace(how, image_sizes=fitting))
    place = Path(out) if out else folder_name("study-speed", host.device)
    place.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"study": "speed", "device": rows[0]["device"], "models": rows}
    result["files"] = written(place, rows, result)
    result["report"] = str(place / "report.html")
    _write(place, result, command)
    return result


def table(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows as text, in the columns of `HEAD`."""
    return [_line(row["model"], size) for row in result["models"] for size in row["sizes"]]


def _line(model: str, size: dict[str, Any]) -> tuple[str, ...]:
    found = size["inference"]
    best, most = found["best"], f"{found['largest']['batch']:,}"
    first = (model, str(size["image_size"]))
    if not best:
        return (*first, "does not fit", "", most, "")
    rate = f"{best['images_per_second']:,.4g}"
    return (*first, rate, f"{best['batch']:,}", most, storage(best["peak_memory"]))


def _write(place: Path, result: dict[str, Any], command: str) -> None:
    """Write the page and the table in Markdown."""
    lines, rows = table(result), result["models"]
    lead = (
        f"ViT paper, Figure 12 and D.5, on {result['device']}: inference in its fast form, fp32. "
        "The paper's were measured on a TPUv3 core."
    )
    drawings = [_svg(draw(rows)) for draw in (throughput, largest_batches)]
    page = TablePage(TITLE, lead, [Table("Figures", HEAD, lines)], drawings, command=command)
    write_tables(place / "report.html", page)
    text = f"# {TITLE}\n\n{lead}\n\n`{command}`\n\n{markdown(HEAD, lines)}\n"
    text += "![Images per second](throughput.svg)\n![Largest batch](largest-batch.svg)\n"
    write_text(place / "results.md", text)


def _svg(figure: Figure) -> Markup:
    """Return a figure as an inline drawing."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=METADATA["svg"])
    text = buffer.getvalue()
    return Markup(text[text.index("<svg") :])


def throughput(rows: Sequence[Measured], *, dark: bool = False) -> Figure:
    """Draw images per second at the best batch by image size, a line for each model.

    Args:
        rows: of `whole`
        dark: for a dark page
    """
    return _panel(rows, _speed_at, "images per second, best batch", dark=dark)


def largest_batches(rows: Sequence[Measured], *, dark: bool = False) -> Figure:
    """Draw the largest batch by image size: of a training step if it was measured, else inference.

    Args:
        rows: of `whole`
        dark: for a dark page
    """
    kind = "training" if any("training" in size for row in rows for size in row["sizes"]) else ""
    what = "training step" if kind else "forward pass"

    def of(size: Measured) -> float:
        return float(size.get(kind or "inference", {}).get("largest", {}).get("batch", 0))

    return _panel(rows, of, f"largest batch of a {what}", dark=dark)


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


def _speed_at(size: Measured) -> float:
    best = size["inference"]["best"]
    return float(best["images_per_second"]) if best else 0.0


def _panel(
    rows: Sequence[Measured], of: Callable[[Measured], float], unit: str, *, dark: bool
) -> Figure:
    head = [rows[0][key] for key in ("device", "mode", "precision")]
    with themed(dark=dark) as theme:
        figure = blank(INCHES, ", ".join(head))
        axes = figure.subplots()
        axes.grid(color=theme["line"], lw=0.6)
        for number, row in enumerate(rows):
            pixels = [_side(size["image_size"]) for size in row["sizes"]]
            values = np.array([of(size) for size in row["sizes"]])
            axes.plot(
                pixels,
                np.where(values > 0, values, np.nan),  # nothing fits: no point on a log axis
                color=theme[f"series{number % len(SERIES)}"],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=DASHES[number // len(SERIES) % len(DASHES)],
                ms=5,
                lw=1.6,
                label=row["model"],
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
