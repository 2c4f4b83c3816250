"""A page of a search by image: each photograph and its nearest ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.sources.folders import named_files
from vitlab.data.sources.source import Source
from vitlab.errors import DataError
from vitlab.evaluation.search import Nearest
from vitlab.report.table_page import save_page, templates

MOST = 600  # pictures of a page
_SIDE = 160  # pixels of a picture, at most


def write_search(
    file: Path,
    found: Sequence[Nearest],
    photos: Source,
    embedded: Source | None = None,
    title: str = "",
    command: str = "",
) -> Path:
    """Write what was found as one HTML file that needs no other; return the file.

    Args:
        file: the page
        found: the answers of `vitlab.search`, as many as the first photos
        photos: that were asked for
        embedded: the images of the table, by whose names pictures are found; None for image files
            at the paths that the table names
        title: its heading
        command: what the user typed

    Raises:
        DiskError: the file cannot be written.
    """
    from vitlab.report.drawings.thumbnails import of_source  # slow to import

    each = 1 + max((len(answer.neighbors) for answer in found), default=0)
    shown = [*enumerate(found)][: max(1, MOST // each)]
    wanted = {one.path for _, answer in shown for one in answer.neighbors}
    numbers = {name: number for number in range(len(embedded or ()))
               if embedded is not None and (name := embedded.name(number)) in wanted}  # fmt: skip

    def picture(path: str) -> str:
        if embedded is not None:
            return of_source(embedded, numbers[path], _SIDE) if path in numbers else ""
        return of_source(one, 0, _SIDE) if (one := _file(path)) is not None else ""

    rows: list[dict[str, Any]] = [
        {"answer": answer, "picture": of_source(photos, number, _SIDE),
         "pictures": [picture(one.path) for one in answer.neighbors]}
        for number, answer in shown
    ]  # fmt: skip
    template = templates().get_template("search.html.jinja")
    rest = len(found) - len(shown)
    return save_page(file, template.render(title=title, rows=rows, rest=rest, command=command))


def _file(path: str) -> Source | None:
    """Return the image file at a path that a table names; None if there is none."""
    try:
        return named_files([path], path) if Path(path).suffix.lower() in SUFFIXES else None
    except (DataError, OSError, ValueError, RuntimeError):
        return None
