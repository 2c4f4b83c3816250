"""`vitlab embed`."""

from dataclasses import MISSING, dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import (
    COMPUTE,
    PARTS,
    EngineOptions,
    PartsOptions,
    PrecisionOptions,
    WeightsOptions,
    WorkersOptions,
)
from vitlab.data.exists import check_data
from vitlab.data.settings import Columns
from vitlab.evaluation.probes.feature_options import Taken
from vitlab.options import argument, option
from vitlab.places import check_new
from vitlab.terminal import print_figures


@dataclass(frozen=True, kw_only=True)
class Embed(WorkersOptions, EngineOptions, PrecisionOptions, PartsOptions, WeightsOptions):
    """A model, images, what to take, and where to compute."""

    data: str = argument(
        "any DATA of `vitlab train`, all of its splits; or images without labels: a folder of "
        "files, or a glob pattern",
        check_data,
    )
    out: str = option(
        MISSING,
        "a new Parquet file with the columns path, label, split and features; or (a name without "
        "an ending) a folder of such files, which several processes can share",
        check=check_new,
    )
    features: Taken = Taken()
    columns: Columns = Columns()


def run(options: Embed) -> dict[str, Any]:
    """Embed; of several processes only the first one has a result to print."""
    from vitlab.evaluation.embedding import embed

    how = options.features.values("what layer dtype")
    how |= options.values(f"columns {COMPUTE} {PARTS}")
    return embed(options.load(), options.data, options.out, **how)


def show(result: dict[str, Any]) -> None:
    """Print what was written."""
    print_figures(result | {"shape": " x ".join(map(str, result["shape"]))})


COMMAND = Command(run, show=show, needs=("pyarrow",))
