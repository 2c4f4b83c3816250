"""`vitlab embed`."""

from dataclasses import MISSING, dataclass
from typing import Any, Literal

from vitlab.commands import (
    DEVICE,
    ENGINE,
    ON,
    PART_HELP,
    PARTED,
    PRECISION,
    SHARD,
    TIMEOUT,
    WEIGHTS,
    WORKERS,
)
from vitlab.data.presence import check_data
from vitlab.data.settings import Columns
from vitlab.evaluation.probes.wanted import Taken
from vitlab.options import Options, at_least, option
from vitlab.packages import check_installed
from vitlab.places import PART, check_new
from vitlab.precision import Engine
from vitlab.terminal import print_figures
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated

SUMMARY = "Write the features of images into Parquet."


@dataclass(frozen=True, kw_only=True)
class Embed(Options):
    """A model, images, what to take, and where to compute."""

    weights: str = option(MISSING, WEIGHTS, positional=True, check=check_weights)
    data: str = option(
        MISSING,
        "any DATA of `vitlab train`, all of its splits; or images without labels: a folder of "
        "files, or a glob pattern",
        positional=True,
        check=check_data,
    )
    out: str = option(
        MISSING,
        "a new Parquet file with the columns path, label, split and features; or (a name without "
        "an ending) a folder of such files, which several processes can share",
        check=check_new,
    )
    part_images: int = option(PART, PART_HELP, at_least(1), only=PARTED)
    shard: str = option("", SHARD, only=PARTED)
    on: Literal["", "ray"] = option("", ON)
    timeout: float = option(600.0, TIMEOUT, at_least(0))
    features: Taken = Taken()
    columns: Columns = Columns()
    file: Stated = Stated()
    device: str = option("auto", DEVICE)
    precision: Literal["fp32", "bf16"] = option("fp32", PRECISION)
    engine: Engine = option("auto", ENGINE)
    workers: int | None = option(None, WORKERS, at_least(0))


def begin(options: Embed) -> None:
    """Refuse to begin without the package that writes the file."""
    check_installed("pyarrow", "vitlab embed")


def run(options: Embed) -> dict[str, Any]:
    """Embed; of several processes only the first one has a result to print."""
    import vitlab

    return vitlab.embed(
        vitlab.load(options.weights, **options.file.arguments()),
        options.data,
        options.out,
        what=options.features.what,
        layer=options.features.layer,
        dtype=options.features.dtype,
        columns=options.columns,
        device=options.device,
        precision=options.precision,
        engine=options.engine,
        workers=options.workers,
        timeout=options.timeout,
        part_images=options.part_images,
        shard=options.shard,
        on=options.on,
    )


def show(result: dict[str, Any]) -> None:
    """Print what was written."""
    print_figures(result | {"shape": " x ".join(map(str, result["shape"]))})
