"""`vitlab measure`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from vitlab.commands import DeviceOptions
from vitlab.errors import OptionError
from vitlab.options import (
    Options,
    above,
    argument,
    at_least,
    at_most,
    option,
    options_of,
    when,
    when_any,
)
from vitlab.places import check_new_folder
from vitlab.progress import named_if_slow, say
from vitlab.recipes.model_part import ModelPart, ViTPart, model_part
from vitlab.terminal import print_table
from vitlab.weights.file_options import Named

SUMMARY = "Count parameters and multiply-adds; time with --speed or --full."


@dataclass(frozen=True, kw_only=True)
class Measure(Options):
    """Models, any fields of those that are given by name, and what to measure."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"model"})

    models: tuple[str, ...] = argument("names such as ViT-B/16, run folders or saved models")
    speed: bool = option(False, "measure inference time and memory too")
    full: bool = option(
        False,
        "measure latency, throughput at the best batch, the largest batch that fits and a training "
        "step, beside the device's own limits",
    )
    fuse: bool = option(False, "time the fused inference form", only=when("speed"))
    engines: bool = option(
        False,
        "time what predict, evaluate, embed and serve choose from, the fastest first: plain "
        "PyTorch, its packed form, torch.compile, ONNX Runtime, OpenVINO",
    )
    batch: int = option(
        1, "images per forward pass", at_least(1), only=when_any("speed", "engines")
    )
    image_sizes: tuple[int, ...] = option(
        (),
        "pixels per side, each measured by itself (default: each model's own): 64 128 224",
        at_least(1),
        only=when("full"),
    )
    mode: Literal["eager", "fused", "accelerated", "compiled"] = option(
        "eager",
        "form for inference: eager, unchanged; fused; accelerated (vitlab.accelerate); or "
        "compiled: fused and compiled for each batch, and so is the training step",
        only=when("full"),
    )
    training: bool = option(True, "measure a training step with AdamW", only=when("full"))
    seconds: float = option(
        1.0, "how long to repeat for each figure", above(0), at_most(600), only=when("full")
    )
    exaflops: bool = option(
        False,
        "add the work of training, as the ViT paper counts it: exaFLOPs, and TPUv3-core-days at "
        "its pace",
    )
    images: float = option(303e6, "training images (JFT-300M)", above(0), only=when("exaflops"))
    epochs: float = option(7.0, "passes over them", above(0), only=when("exaflops"))
    out: str | None = option(
        None,
        "a new folder for the figures and two plots: throughput and the largest batch by image "
        "size",
        only=when("full"),
        check=check_new_folder,
    )
    device: str = option(
        "auto", options_of(DeviceOptions)["device"].help, only=when_any("speed", "full", "engines")
    )
    precision: Literal["fp32", "bf16", "bf16-pure"] = option(
        "fp32",
        "fp32, bf16 autocast, or bf16-pure: weights in bf16 too, in training beside fp32 masters "
        "(with full)",
        only=when_any("speed", "full"),
    )
    file: Named = Named()
    model: ModelPart = ViTPart()

    def __post_init__(self) -> None:
        """Check every option by itself, then together."""
        super().__post_init__()
        if self.speed and self.precision == "bf16-pure":
            raise OptionError("precision=bf16-pure applies with full, not with speed")
        if self.mode == "accelerated" and self.precision == "bf16-pure":
            raise OptionError("mode=accelerated has precision fp32 or bf16, not bf16-pure")
        if self.image_sizes and "image_size" in self.model.chosen():
            raise OptionError("image_sizes takes the place of image_size: leave one of them out")


def build(given: dict[str, Any]) -> Measure:
    """Return options with the fields of the first model that is given by name."""
    models = given.get("models", ())
    named = [name for name in models if not Path(name).exists()]
    part = model_part(named[0]) if named else ViTPart()
    return Measure(models=models, model=part).changed(**given)


def run(options: Measure) -> dict[str, Any]:
    """Measure each model; one model is the object itself, several are a list."""
    rows = _timed(options) if options.speed or options.engines or not options.full else []
    if options.full:
        whole = _whole(options)
        rows = [row | more for row, more in zip(rows or whole, whole, strict=True)]
    if options.exaflops:
        from vitlab.measure.summary import opened
        from vitlab.studies.compute_card import training_work

        for row, name in zip(rows, options.models, strict=True):
            config, _ = opened(name, options.file.arguments(), **options.model.chosen())
            row |= training_work(config, options.images, options.epochs)
    result = rows[0] if len(rows) == 1 else {"models": rows}
    if options.out is not None:
        from vitlab.studies.figure_12 import written

        result = result | {"files": written(Path(options.out).expanduser(), rows, result)}
    return result


def _timed(options: Measure) -> list[dict[str, Any]]:
    """Return the cost of each model, and its speed if asked."""
    from vitlab.measure.summary import measure

    how: dict[str, Any] = {"timed": options.speed, "fused": options.fuse}
    how |= options.values("engines batch device") | {"known": options.file.arguments()}
    how["precision"] = "bf16" if options.precision == "bf16" else "fp32"
    rows = []
    for number, name in enumerate(options.models, 1):
        if len(options.models) > 1:
            say(f"model {number} of {len(options.models)}: {name}")
        with named_if_slow(f"measuring {name}", len(options.models) == 1):
            rows.append(measure(name, **how, **options.model.chosen()))
    return rows


def _whole(options: Measure) -> list[dict[str, Any]]:
    """Return all figures of each model."""
    from vitlab.studies.figure_12 import SpeedSettings, whole

    how = SpeedSettings(**options.values("image_sizes mode precision device seconds training"))
    known = options.file.arguments()
    return whole(options.models, how, known=known, **options.model.chosen())


def show(result: dict[str, Any]) -> None:
    """Print a table per model, its parts below, and what was measured of it whole."""
    from vitlab.terminal import readable

    for row in result.get("models", [result]):
        parts = [(f"  {p['part']}", f"{p['params']:,} / {p['macs']:,}") for p in row["parts"]]
        own = ["parts", "engines", *(("device", "mode", "precision") if "sizes" in row else ())]
        figures = {name: value for name, value in row.items() if name not in own}
        head = ("part", "parameters / multiply-adds")
        print_table(("figure", "value"), [*readable(figures), head, *parts])
        if "engines" in row:
            speeds = [
                (f"{each['engine']}, {each['precision']}", f"{each['images_per_second']:,.1f}")
                for each in row["engines"]
            ]
            print_table(("engine, the fastest first", "images/s"), speeds)
        if "sizes" in row:
            from vitlab.studies.figure_12 import tables_of

            for title, names, lines in tables_of(row):
                print(title)
                print_table(names, lines)
    for place in result.get("files", {}).values():
        print(place)
