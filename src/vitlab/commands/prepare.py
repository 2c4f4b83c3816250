"""`vitlab prepare`."""

from dataclasses import dataclass
from typing import Any, Literal

from vitlab.command_table import Command
from vitlab.commands import WorkersOptions
from vitlab.data.exists import check_data
from vitlab.data.settings import Columns
from vitlab.options import argument, at_least, at_most, option
from vitlab.places import check_new_folder, check_outside


@dataclass(frozen=True, kw_only=True)
class Prepare(WorkersOptions):
    """What to copy, where to, and in what form."""

    data: str = argument(
        "any DATA of `vitlab train`; its splits and the order of its classes are kept", check_data
    )
    out: str = argument("a new folder, which can then be used as DATA", check_new_folder)
    side: int = option(
        256, "largest shorter side in pixels; smaller images keep their size", at_least(1)
    )
    format: Literal["parquet", "tar"] = option(
        "parquet", "Parquet files as on the Hugging Face Hub, or WebDataset shards"
    )
    columns: Columns = Columns()
    quality: int = option(92, "JPEG quality", at_least(1), at_most(95))


def begin(options: Prepare) -> None:
    """Refuse a copy within its source."""
    check_outside(options.out, options.data)


def run(options: Prepare) -> dict[str, Any]:
    """Copy; images that cannot be used are reported on stderr."""
    from vitlab.data.prepare import copy, sources_to_copy
    from vitlab.progress import Meter

    sources = sources_to_copy(options.data, options.columns)
    how = options.values("side quality workers") | {"layout": options.format}
    with Meter(sum(map(len, sources.values())), title="preparing") as meter:
        return copy(
            sources,
            options.out,
            progress=lambda images: meter.show(images, "images"),
            **how,
        )


COMMAND = Command(run, begin=begin)
