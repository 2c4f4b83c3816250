"""Models measured whole by image size: latency, throughput, the largest batch, a training step.

Source of the two panels: Dosovitskiy et al., An Image is Worth 16x16 Words, 2021, Figure 12.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from vitlab import device as devices
from vitlab.errors import DeviceError
from vitlab.files import staged_file, write_text
from vitlab.inspect.plots.canvas import blank, themed
from vitlab.measure.modes import Mode, Passes, Precision
from vitlab.measure.rates import Rates, device_rates
from vitlab.measure.subject import DeviceLimits, Subject, best, largest, timed
from vitlab.measure.summary import measure, opened
from vitlab.models.config import ModelConfig
from vitlab.models.cost import cost
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.pages.palette import SERIES
from vitlab.progress import Meter
from vitlab.studies.results import line_cycle
from vitlab.training.benchmark_step import PracticeSteps
from vitlab.units import percent, si, storage

SHARE = 0.25  # of the time for a figure that each batch of a search gets
INCHES = (6.0, 4.2)
METADATA = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
HEAD = ("size", "ms", "5-95%", "best", "per s", "MFU", "memory", "largest")

HOW = ("device", "mode", "precision")

Sized = tuple[ModelConfig, Model | None]
Measured = dict[str, Any]
"""A model in JSON, or what was measured of it at one size."""


@dataclass(frozen=True)
class SpeedSettings:
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

    def trains(self, config: ModelConfig) -> bool:
        """Return whether a training step is measured: one answer per image, and classes."""
        return self.training and config.classes > 0 and config.answers == 1


def whole(
    names: Sequence[str], how: SpeedSettings, *, known: dict[str, Any] | None = None, **choices: Any
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
    devices.choose(how.device)
    rows, every = [measure(name, known=known, **choices) for name in names], list[list[Sized]]()
    for name in names:
        config, model = opened(name, known, **choices)
        asked = how.image_sizes or (config.image_size,)
        every.append([at_size(config, model, size) for size in asked])
    device = device_rates(how.device)
    passes = [1 + how.trains(config) for sizes in every for config, _ in sizes]
    with Meter(3 * sum(passes), title="measuring") as meter:
        for row, sizes in zip(rows, every, strict=True):
            found = [_measured(config, model, how, device, meter) for config, model in sizes]
            row |= {"device": device.device, "mode": how.mode, "precision": how.precision}
            row |= {"rates": device.as_dict(), "sizes": found}
    return rows


def at_size(config: ModelConfig, model: Model | None, size: Any) -> Sized:
    """Return a configuration, and its weights if it has some, at another image size.

    Raises:
        OptionError: a size that the model does not take.
    """
    if size == config.image_size:
        return config, model
    return replace(config, image_size=size), model and model.resize(size)


def _measured(
    config: ModelConfig, weights: Model | None, how: SpeedSettings, device: Rates, meter: Meter
) -> dict[str, Any]:
    """Measure a model at one image size."""
    label, macs = f"{config.name} at {config.image_size}", cost(config).macs
    figures: dict[str, Any] = {"image_size": config.image_size, "macs": macs}
    where, compiled = devices.choose(how.device), how.mode == "compiled"
    makers: dict[str, Callable[[Model], Subject]] = {
        "inference": lambda model: Passes(model, how.mode, how.precision, where),
        "training": lambda model: PracticeSteps(model, how.precision, where, compiled=compiled),
    }
    if not how.trains(config):
        del makers["training"]
        if how.training:
            meter.say(f"{label} has no single classifier: there is no training step to time")
    for kind, make in makers.items():
        try:
            subject = make(weights or build(replace(config, zero_head=True)))
        except torch.OutOfMemoryError:
            raise DeviceError(
                f"the weights of {label} do not fit into memory: choose a smaller model"
            ) from None
        limits = DeviceLimits(macs, device, training=kind == "training")
        figures[kind] = _figures(subject, limits, how, f"{kind} of {label}", meter)
    return figures


def _figures(
    subject: Subject, limits: DeviceLimits, how: SpeedSettings, label: str, meter: Meter
) -> dict[str, Any]:
    """Measure one kind of passes: one image, the largest batch, and the best one."""

    def show(what: str, done: int = 0) -> None:
        meter.done += done
        meter.show(meter.done, f"{label}: {what}")

    show("one image")
    single = timed(subject, limits, 1, how.seconds)
    show("the largest batch", 1)
    most: dict[str, Any] = largest(subject) if single else {"batch": 0, "how": "tried"}
    show("the best batch", 1)
    each = SHARE * how.seconds
    found, ended = best(subject, each, int(most["batch"]), lambda batch: show(f"batch {batch:,}"))
    top = found and timed(subject, limits, found.batch, how.seconds, each=False)
    show("done", 1)
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
    the next four columns those of the best batch.
    """
    rates, most = row["rates"], row["sizes"][0]["inference"]["largest"]
    counted = most["how"] != "tried"
    yield "  device", ("device", "value"), [
        *((key, row[key]) for key in HOW),
        *((f"{kind} products", f"{si(rate)}FLOP/s") for kind, rate in rates["products"].items()),
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
        storage(best["peak_memory"]),
        f"{largest['batch']:,}",
    )


def throughput(size: Measured) -> float:
    """Return the images per second at the best batch of a size; NaN if nothing fits."""
    best = size["inference"]["best"]
    return float(best["images_per_second"]) if best else math.nan


def largest_batch(size: Measured) -> float:
    """Return the largest batch of a size: of a training step if it was measured, else inference."""
    return (size.get("training") or size["inference"])["largest"]["batch"] or math.nan


PLOTS = {
    "throughput": (throughput, "images per second, best batch"),
    "largest-batch": (largest_batch, "largest batch, of a training step if it was measured"),
}


def plot(rows: Sequence[Measured], name: str) -> Figure:
    """Draw one of `PLOTS` by image size, a line for each model of `whole`."""
    value, unit = PLOTS[name]
    with themed(dark=False) as theme:
        figure = blank(INCHES, ", ".join(rows[0][key] for key in HOW))
        axes = figure.subplots()
        axes.grid(color=theme["line"], lw=0.6)
        axes.set_prop_cycle(line_cycle([theme[f"series{n}"] for n in range(len(SERIES))]))
        for row in rows:  # pixels of a square as large as the image
            sides = [
                np.sqrt(np.broadcast_to(size["image_size"], 2).prod()) for size in row["sizes"]
            ]
            axes.loglog(sides, [value(size) for size in row["sizes"]], label=row["model"])
        axes.set_xscale("log", base=2)
        axes.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,g}")
        axes.set(xlabel="image size (pixels per side)", ylabel=unit)
        axes.legend(fontsize=9)
        return figure


def written(folder: Path, rows: Sequence[Measured], result: Measured) -> dict[str, str]:
    """Write both figures, as PNG and SVG, and the JSON; return where they are.

    Raises:
        DiskError: a file cannot be written.
    """
    places = {}
    for name in PLOTS:
        figure = plot(rows, name)
        for kind, metadata in METADATA.items():
            place = folder / f"{name}.{kind}"
            with staged_file(place) as draft:
                figure.savefig(draft, format=kind, metadata=metadata)
            places[f"{name}_{kind}"] = str(place)
    write_text(folder / "measure.json", json.dumps(result, indent=2) + "\n")
    return places | {"figures": str(folder / "measure.json")}
