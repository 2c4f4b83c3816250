"""Models measured whole by image size: latency, throughput, the largest batch, a training step.

Source of the two panels: Dosovitskiy et al., An Image is Worth 16x16 Words, 2021, Figure 12.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from vitlab import device as devices
from vitlab.errors import DeviceError
from vitlab.files import staged_file, write_text
from vitlab.inspect.plots.canvas import blank, themed
from vitlab.measure.modes import Mode, Passes, Precision
from vitlab.measure.rates import Rates, device_rates
from vitlab.measure.roofline import Work, work_of
from vitlab.measure.subject import Limits, Subject, best, largest, timed
from vitlab.measure.summary import measure, opened
from vitlab.models.config import ModelConfig
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.pages.palette import SERIES
from vitlab.progress import Meter
from vitlab.studies.results import line_style
from vitlab.training.benchmark_step import PracticeSteps
from vitlab.units import percent, si, storage

SHARE = 0.25  # of the time for a figure that each batch of a search gets
INCHES = (6.0, 4.2)
METADATA = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
HEAD = ("size", "ms", "5-95%", "best", "per s", "MFU", "roof", "memory", "largest")

Measured = dict[str, Any]
"""A model in JSON, or what was measured of it at one size."""


@dataclass(frozen=True)
class How:
    """How models are measured.

    Attributes:
        image_sizes: pixels per side; none for each model's own
        mode: of inference; a training step is compiled if it is
        precision: fp32, bf16 (autocast) or bf16-pure (weights too)
        device: auto, cpu, cuda, cuda:N or mps
        seconds: how long to repeat for each figure
        training: whether to measure a training step too
    """

    image_sizes: tuple[int, ...] = ()
    mode: Mode = "eager"
    precision: Precision = "fp32"
    device: str = "auto"
    seconds: float = 1.0
    training: bool = True


@dataclass(frozen=True)
class Candidate:
    """A model at one image size: its configuration, its weights if it has some, and its work."""

    config: ModelConfig
    weights: Model | None
    work: Work

    @property
    def trained(self) -> bool:
        """Whether it has a training step: one answer per image, and classes."""
        return self.config.classes > 0 and self.config.answers == 1

    def model(self) -> Model:
        """Return the model itself."""
        return self.weights or build(replace(self.config, zero_head=True))


def whole(
    names: Sequence[str],
    how: How,
    *,
    known: dict[str, Any] | None = None,
    **choices: Any,
) -> list[dict[str, Any]]:
    """Measure models whole; every name and size is checked before anything is measured.

    Args:
        names: in the papers' notation, or run folders or saved models
        how: what to measure
        known: of saved models, what `vitlab.load` takes: name, part, drop
        choices: as `vitlab.measure` takes them

    Returns:
        For each model what `vitlab measure` says without options, and `device`, `mode`,
        `precision`, `rates` (see `vitlab.measure.Rates`) and `sizes`: for each image size the
        figures of `inference` and `training`.

    Raises:
        OptionError: an unknown name, or a size that a model does not take.
        DeviceError: a missing device, or one that is too small for a model's weights.
        WeightsError: a folder without a model.
    """
    where = devices.choose(how.device)
    rows = [measure(name, known=known, **choices) for name in names]
    models = [candidates(name, how.image_sizes, known, choices) for name in names]
    device = device_rates(how.device)
    each = [1 + how.training * one.trained for sizes in models for one in sizes]
    with Meter(3 * sum(each), title="measuring") as meter:
        for row, sizes in zip(rows, models, strict=True):
            found = [_measured(one, how, device, where, meter) for one in sizes]
            row |= {"device": device.device, "mode": how.mode, "precision": how.precision}
            row |= {"rates": device.as_dict(), "sizes": found}
    return rows


def candidates(
    name: str, sizes: tuple[int, ...], known: dict[str, Any] | None, choices: dict[str, Any]
) -> list[Candidate]:
    """Return a model at each size.

    Raises:
        OptionError: an unknown name, or a size that the model does not take.
    """
    config, model = opened(name, known, **choices)
    found = []
    for size in sizes or (config.image_size,):
        other = config if size == config.image_size else replace(config, image_size=size)
        weights = model if model is None or other is config else model.resize(size)
        found.append(Candidate(other, weights, work_of(other)))
    return found


def _measured(
    one: Candidate, how: How, device: Rates, where: torch.device, meter: Meter
) -> dict[str, Any]:
    """Measure a model at one image size."""
    label = f"{one.config.name} at {one.config.image_size}"
    figures: dict[str, Any] = {"image_size": one.config.image_size, "macs": one.work.macs}
    limits = Limits(one.work, device)
    kinds: dict[str, tuple[Callable[[Model], Subject], Limits]] = {
        "inference": (lambda model: Passes(model, how.mode, how.precision, where), limits)
    }
    if how.training and one.trained:
        compiled = how.mode == "compiled"
        kinds["training"] = (
            lambda model: PracticeSteps(model, how.precision, where, compiled=compiled),
            replace(limits, training=True),
        )
    elif how.training:
        meter.say(f"{label} has no single classifier: there is no training step to time")
    for kind, (make, against) in kinds.items():
        try:
            subject = make(one.model())
        except torch.OutOfMemoryError:
            raise DeviceError(
                f"the weights of {label} do not fit into memory: choose a smaller model"
            ) from None
        figures[kind] = _figures(subject, against, how, f"{kind} of {label}", meter)
    return figures


def _figures(
    subject: Subject, limits: Limits, how: How, label: str, meter: Meter
) -> dict[str, Any]:
    """Measure one kind of passes: one image, the largest batch, and the best one."""

    def show(what: str) -> None:
        meter.show(meter.done, f"{label}: {what}")

    show("one image")
    single = timed(subject, limits, 1, how.seconds)
    meter.done += 1
    show("the largest batch")
    most: dict[str, Any] = largest(subject) if single else {"batch": 0, "how": "tried"}
    meter.done += 1
    found, ended = best(
        subject,
        SHARE * how.seconds,
        int(most["batch"]),
        lambda batch: show(f"batch {batch:,}"),
    )
    top = found and timed(subject, limits, found.batch, how.seconds, each=False)
    meter.done += 1
    show("done")
    tried = {str(batch): rate for batch, rate in found.rates.items()} if found else {}
    return {
        "precision": subject.precision,
        "single": single,
        "best": top and top | {"ended": ended, "tried": tried},
        "largest": most,
    }


def tables_of(row: Measured) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Yield tables of a model, each with a title and a head: the device, then each kind of passes.

    Those of passes have a row per size: milliseconds and their percentiles are those of one image,
    the next five columns those of the best batch.
    """
    rates, most = row["rates"], row["sizes"][0]["inference"]["largest"]
    counted = most["how"] != "tried"
    yield "  device", ("device", "value"), [
        *((key, row[key]) for key in ("device", "mode", "precision")),
        *((f"{kind} products", f"{si(rate)}FLOP/s") for kind, rate in rates["products"].items()),
        ("memory copied", f"{storage(rates['bandwidth'])}/s"),
        ("largest batch", f"counted, for about {storage(most['free'])}" if counted else "tried"),
    ]  # fmt: skip
    for kind in ("inference", "training"):
        if sizes := [size for size in row["sizes"] if kind in size]:
            yield f"  {kind}", HEAD, [_line(size["image_size"], **size[kind]) for size in sizes]


def _line(
    size: Any, single: Measured | None, best: Measured | None, largest: Measured, **_: Any
) -> tuple[str, ...]:
    """Return what was measured at a size, in the columns of `HEAD`."""
    if not single or not best:
        return (f"{size}", "does not fit", *[""] * (len(HEAD) - 3), f"{largest['batch']:,}")
    low, middle, high = (1000 * single[key] for key in ("latency_p5", "latency", "latency_p95"))
    return (
        f"{size}",
        f"{middle:.4g}",
        f"{low:.3g}-{high:.3g}",
        f"{best['batch']:,}",
        f"{best['images_per_second']:,.4g}",
        percent(best["share_of_products"]),
        percent(best["share_of_roofline"]),
        storage(best["peak_memory"]),
        f"{largest['batch']:,}",
    )


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
