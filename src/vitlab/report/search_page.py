"""Page of a search by image: each photograph and its nearest ones."""

from collections.abc import Sequence
from pathlib import Path

from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.sources.folders import named_files
from vitlab.data.sources.source import Source
from vitlab.errors import DataError
from vitlab.evaluation.search import Nearest, Neighbor
from vitlab.report.page import (
    Page,
    Prose,
    Section,
    Thumbnail,
    Thumbnails,
    common_folder,
    write_page,
)

MOST = 600  # pictures of a page
OPEN = 4  # photographs that are not folded


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
    from vitlab.report.thumbnails import of_source  # slow to import

    each = 1 + max((len(answer.neighbors) for answer in found), default=0)
    shown = found[: max(1, MOST // each)]
    wanted = {one.path for answer in shown for one in answer.neighbors}
    folder, asked = common_folder(wanted), common_folder(answer.image for answer in shown)
    there = () if embedded is None else map(embedded.name, range(len(embedded)))
    numbers = {name: number for number, name in enumerate(there) if name in wanted}

    def thumbnail(one: Neighbor) -> Thumbnail:
        source, number = embedded, numbers.get(one.path, -1)
        if source is None:
            source, number = _file(one.path), 0
        image = of_source(source, number) if source is not None and number >= 0 else ""
        label = one.label if isinstance(one.label, str) else ", ".join(one.label or ())
        words, name = f"{one.score:.3f}" + " (itself)" * one.same, one.path.removeprefix(folder)
        return Thumbnail((image,), label or words, words if label else "", name)

    sections = []
    for number, answer in enumerate(shown):
        name = answer.image.removeprefix(asked)
        own = Thumbnail((of_source(photos, number),), "asked for", file=name)
        error = [Prose(answer.error)] if answer.error else []
        pictures = Thumbnails([own, *map(thumbnail, answer.neighbors)])
        sections.append(Section(f"photo-{number}", name, [*error, pictures], number >= OPEN))
    rest = len(found) - len(shown)
    notes = [f"{rest:,} more photographs are not shown: --json lists them all"] if rest else []
    lead = (
        "The nearest images of each photograph, by the cosine of their features: 1 for the same "
        "direction."
    )
    return write_page(file, Page(title, lead, sections, notes, command, "search"))


def _file(path: str) -> Source | None:
    """Return the image file at a path that a table names; None if there is none."""
    try:
        return named_files([path], path) if Path(path).suffix.lower() in SUFFIXES else None
    except (DataError, OSError, ValueError, RuntimeError):
        return None
