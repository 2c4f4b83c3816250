"""`vitlab measure`."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from vitlab.commands import DEVICE, PRECISION
from vitlab.options import Options, at_least, option, when
from vitlab.progress import named_if_slow, say
from vitlab.recipes.model_part import ModelPart, ViTPart, model_part
from vitlab.terminal import print_table
from vitlab.weights.stated import Named

SUMMARY = "Count parameters and multiply-adds; time models with --speed."


@dataclass(frozen=True, kw_only=True)
class Measure(Options):
    """Models, any fields of those that are given by name, and what to measure."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"model"})

    models: tuple[str, ...] = option(
        MISSING, "names such as ViT-B/16, run folders or saved models", positional=True
    )
    speed: bool = option(False, "measure inference time and memory too")
    fuse: bool = option(False, "time the fused inference form", only=when("speed"))
    batch: int = option(1, "images per forward pass", at_least(1), only=when("speed"))
    device: str = option("auto", DEVICE, only=when("speed"))
    precision: Literal["fp32", "bf16"] = option("fp32", PRECISION, only=when("speed"))
    file: Named = Named()
    model: ModelPart = ViTPart()


def build(given: dict[str, Any]) -> Measure:
    """Return options with the fields of the first model that is given by name."""
    models = given.get("models", ())
    named = [name for name in models if not Path(name).exists()]
    part = model_part(named[0]) if named else ViTPart()
    return Measure(models=models, model=part).changed(**given)


def run(options: Measure) -> dict[str, Any]:
    """Measure each model; one model is the object itself, several are a list."""
    from vitlab.measure.summary import measure

    rows = []
    for number, name in enumerate(options.models, 1):
        if len(options.models) > 1:
            say(f"model {number} of {len(options.models)}: {name}")
        with named_if_slow(f"measuring {name}", len(options.models) == 1):
            row = measure(
                name,
                timed=options.speed,
                fused=options.fuse,
                batch=options.batch,
                device=options.device,
                precision=options.precision,
                known=options.file.arguments(),
                **options.model.chosen(),
            )
        rows.append(row)
    return rows[0] if len(rows) == 1 else {"models": rows}


def show(result: dict[str, Any]) -> None:
    """Print a table per model, its parts below."""
    from vitlab.units import readable

    for row in result.get("models", [result]):
        parts = [(f"  {p['part']}", f"{p['params']:,} / {p['macs']:,}") for p in row["parts"]]
        figures = {name: value for name, value in row.items() if name != "parts"}
        head = ("part", "parameters / multiply-adds")
        print_table(("figure", "value"), [*readable(figures), head, *parts])
