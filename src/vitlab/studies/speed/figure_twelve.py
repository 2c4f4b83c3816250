"""Images per second and the largest batch by image size, ViTs and ResNets (ViT, Figure 12)."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from vitlab.files import write_text
from vitlab.recipes.recipe import Host
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.runs.naming import folder_name
from vitlab.studies.grid.shown.study_tables import markdown
from vitlab.studies.speed.speed_plots import METADATA, largest_batches, throughput, written
from vitlab.studies.speed.whole import How, whole
from vitlab.studies.study_names import PAPER_BUDGET
from vitlab.units import seconds, storage

PAPER = ("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16", "ViT-H/14", "BiT-R50x1", "BiT-R50x2",
         "BiT-R152x2", "BiT-R200x3")  # fmt: skip
SMALL = ("ViT-Ti/16", "ViT-S/32", "ViT-S/16", "BiT-R50x1")
PAPER_SIZES, SIZES = (64, 128, 224, 384, 512), (64, 128, 224)
TITLE = "Speed by image size"
STEP = 14  # ViT-H/14 takes multiples of its patch: other sizes are rounded for it
POINTS = 22.0  # times its seconds that a figure takes: the search for the best batch included
LEAST, MOST = 0.02, 5.0  # seconds for a figure


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


HEAD = ("model", "image size", "images/s", "at batch", "largest batch", "memory at best batch")


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
