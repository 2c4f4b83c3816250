"""Page of a search by image: each photograph and its nearest ones."""

from collections.abc import Sequence
from pathlib import Path

from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.images import Images
from vitlab.data.sources.image_files import image_paths
from vitlab.evaluation.search import Nearest, Neighbor
from vitlab.progress import named_if_slow
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


@named_if_slow("drawing the page")
def write_search(
    file: Path,
    found: Sequence[Nearest],
    photos: Images,
    embedded: Images | None = None,
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
    if embedded is None:
        files = (path for path in wanted if Path(path).suffix.lower() in SUFFIXES)
        names = [path for path in files if Path(path).is_file()]
        embedded = image_paths(names)
    else:
        names = [embedded.name(number) for number in range(len(embedded))]
    numbers = {name: number for number, name in enumerate(names) if name in wanted}

    def thumbnail(one: Neighbor) -> Thumbnail:
        image = of_source(embedded, numbers[one.path]) if one.path in numbers else ""
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
