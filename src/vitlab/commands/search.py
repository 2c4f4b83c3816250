"""`vitlab search`."""

from dataclasses import dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import DeviceOptions, PageOptions, WorkersOptions, say_skipped
from vitlab.data.exists import check_data, check_each
from vitlab.data.settings import Columns
from vitlab.errors import DataError, one_line
from vitlab.machine.open_files import check_open_files
from vitlab.machine.option_texts import WORKERS
from vitlab.options import argument, at_least, option, when
from vitlab.places import exists
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated

_LINES = 100  # of the answer on the terminal


@dataclass(frozen=True, kw_only=True)
class Search(WorkersOptions, DeviceOptions, PageOptions):
    """A table of features, photographs to look for; `command` is what the user typed."""

    table: str = argument(
        "the Parquet file, or the folder of parts, that `vitlab embed` wrote, with one vector an "
        "image (--what features, token, mean or both)"
    )
    photos: tuple[str, ...] = argument(
        "what to look for: image files, or any DATA of `vitlab train`, labels or not", check_each
    )
    k: int = option(10, "rows to find for each photograph", at_least(1))
    not_self: bool = option(False, "leave out the photograph itself, if the table has its path")
    weights: str = option(
        "",
        "weights that the table was computed with (empty: where they were, as the table says)",
        flag="from",
        check=check_weights,
    )
    data: str = option(
        "",
        "the DATA that was embedded, for the pictures of the page (empty: image files at the paths "
        "that the table names)",
        only=when("out"),
        check=check_data,
    )
    columns: Columns = Columns()
    file: Stated = Stated()
    workers: int | None = option(0, WORKERS, at_least(0), check=check_open_files)


def begin(options: Search) -> None:
    """Refuse a table that is not there, and a page that cannot be written."""
    if not exists(options.table):
        raise DataError(f"no such file or folder: {options.table}")
    options.page()


def run(options: Search) -> dict[str, Any]:
    """Search; photographs that cannot be decoded are reported on stderr."""
    from vitlab.data.open import open_images
    from vitlab.evaluation.search import FeatureTable, search
    from vitlab.progress import say
    from vitlab.report.search_page import write_search

    table = FeatureTable.open(options.table)
    model = table.model(options.weights or None, **options.file.arguments())
    opened = open_images(list(options.photos), "none", columns=options.columns)
    say(*opened.notes)
    photos = opened.every()
    how = options.values("k not_self device workers")
    found = search(table, photos, weights=model, **how)
    damaged = [each.error for each in found if each.error]
    say_skipped(*damaged)
    result: dict[str, Any] = {
        "table": options.table,
        "rows": table.rows,
        "model": model.config.name,
        "images": len(found) - len(damaged),
        "damaged": len(damaged),
        "found": [each.as_dict() for each in found],
    }
    if page := options.page():
        embedded = open_images(options.data, "none").every() if options.data else None
        about = options.table, options.command
        result["report"] = str(write_search(page, found, photos, embedded, *about))
    return result


def show(result: dict[str, Any]) -> None:
    """Print each photograph, and below it a line for each of the nearest rows: paths are whole."""
    lines = []
    for each in result["found"]:
        lines += [each["image"]] if "nearest" in each else []
        for one in each.get("nearest", ()):
            label = one["label"] if isinstance(one["label"], list) else [one["label"] or ""]
            itself = "itself" if one["same"] else ""
            cells = f"  {one['score']:.3f}", one["path"], ", ".join(label), one["split"], itself
            lines.append("  ".join(filter(None, cells)))
    for line in lines[:_LINES]:
        print(one_line(line))
    if len(lines) > _LINES:
        left = f"{len(lines) - _LINES:,} more lines"
        print(f"{left}: --json has them all, --out FILE.html shows them")
    if "report" in result:
        print(result["report"])


COMMAND = Command(run, show=show, begin=begin, needs=("pyarrow",))
