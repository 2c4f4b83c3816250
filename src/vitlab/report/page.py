"""Pages: a title, what is seen first, and sections that fold, as one self-contained HTML file.

Every page maker says what it shows as blocks; this file and its templates say how they look. Text
is escaped unless it is `Markup`. A page needs no network, no scripts and no other files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitlab.files import staged_file
from vitlab.pages.palette import DARK, LIGHT


@dataclass(frozen=True)
class Prose:
    """A paragraph; `note` for one in small print."""

    text: str
    note: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A table, everything in it being text.

    Attributes:
        title: its heading
        head: a heading for each column
        rows: as many cells each
        marked: the number of the row that was chosen, if one was
        note: a sentence above it
        texts: columns at the left that are text; the others are numbers
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    marked: int | None = None
    note: str = ""
    texts: int = 1


@dataclass(frozen=True)
class Plot:
    """A drawing (`<svg>` or `<img>`) under its title, and what it tells."""

    title: str
    drawing: Markup
    words: str = ""


@dataclass(frozen=True)
class Plots:
    """Drawings side by side."""

    items: Sequence[Plot]


@dataclass(frozen=True)
class Thumbnail:
    """An image with its caption.

    Attributes:
        images: data URIs, side by side; an empty one cannot be read
        title: the line that is read first
        words: what else there is to know
        file: its name, which can be copied as a whole
        id: where links find it
    """

    images: tuple[str, ...]
    title: str
    words: str = ""
    file: str = ""
    id: str = ""


@dataclass(frozen=True)
class Thumbnails:
    """Images in rows; `size` is small, or wide for two or more images each."""

    items: Sequence[Thumbnail]
    size: str = "small"


@dataclass(frozen=True)
class Card:
    """One key figure: its label, its value, its 95% interval, and a note on how to read it."""

    label: str
    value: str
    note: str = ""
    range: str = ""


@dataclass(frozen=True)
class Gauge:
    """A share on a scale from 0 to 100: value, 95% interval, and what guessing gives."""

    value: float
    interval: tuple[float, float] | None = None
    guessing: float | None = None


@dataclass(frozen=True)
class Cards:
    """Key figures, the most important one first and large, above the scale of that one."""

    items: Sequence[Card]
    gauge: Gauge | None = None


@dataclass(frozen=True)
class DefinitionList:
    """Names and what they stand for."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Commands:
    """Commands to copy, each under what it does."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Lens:
    """A picture over a photo.

    Attributes:
        title: below it
        source: a data URI
        words: for those who do not see it
        scale: name of its colors in `Sights.scales`, and what the lowest and the highest stand for
        ring: left, top, width and height of a part that is framed, in percent
        whole: it hides the photo
    """

    title: str
    source: str
    words: str
    scale: tuple[str, ...] = ()
    ring: tuple[float, ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class Sight:
    """A photo and its maps.

    Attributes:
        name: its heading
        label: its class, if that is known
        top: the likeliest classes and their probabilities
        behind: the photo that maps lie over, a data URI
        ratio: its width to its height
        lenses: the maps
        heads: small maps below them
    """

    name: str
    label: str
    top: tuple[tuple[str, str], ...]
    behind: str
    ratio: float
    lenses: Sequence[Lens]
    heads: Sequence[Lens]


@dataclass(frozen=True)
class Sights:
    """Photos with maps over them; `scales` has the colors of maps as CSS, from low to high."""

    items: Sequence[Sight]
    scales: Mapping[str, Markup]


Block = Prose | ReportTable | Plots | Thumbnails | Cards | DefinitionList | Commands | Sights


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; a folded one shows its heading and `hint` until it is opened."""

    id: str
    title: str
    blocks: Sequence[Block]
    folded: bool = True
    hint: str = ""


@dataclass(frozen=True)
class Page:
    """Everything that a page shows, in this order; sections without blocks are left out.

    Attributes:
        title: its heading
        lead: the result in a sentence or two
        sections: of the page
        notes: what the reader must know; one that comes twice is shown once
        command: that made the page
        kicker: what kind of page it is
    """

    title: str
    lead: str = ""
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()
    command: str = ""
    kicker: str = ""


def write_page(file: Path, page: Page) -> Path:
    """Write a page as one HTML file; an older one is replaced only by a complete one.

    Raises:
        DiskError: the file cannot be written.
    """
    text = rendered(page).encode("utf-8", "backslashreplace")  # file names need not be Unicode
    with staged_file(file) as draft:
        draft.write_bytes(text)
    return file


def rendered(page: Page) -> str:
    """Return a page as HTML; the template library is imported here."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vitlab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    template = environment.get_template("page.html.jinja")
    return template.render(page=page, light=LIGHT, dark=DARK)


@dataclass(frozen=True)
class TablePage:
    """What a page of tables shows, in this order."""

    title: str
    lead: str
    tables: Sequence[ReportTable] = ()
    drawings: Sequence[Markup] = ()
    notes: Sequence[str] = ()
    command: str = ""


def write_tables(file: Path, page: TablePage) -> Path:
    """Write tables and drawings as one HTML file that needs no other; return the file.

    Raises:
        DiskError: the file cannot be written.
    """
    plots = Plots([Plot("", each) for each in page.drawings])
    drawn = [Section("drawings", "Drawings", [plots], folded=False)] if page.drawings else []
    tables = [
        Section(f"table-{number}", table.title, [table], folded=False)
        for number, table in enumerate(page.tables, 1)
    ]
    whole = Page(page.title, page.lead, [*drawn, *tables], page.notes, page.command)
    return write_page(file, whole)


# Words that pages share


def mistaken(truth: str, guess: str) -> Markup:
    """Return `truth → guess`, the guess in the color of mistakes if it is one."""
    if truth == guess:
        return Markup("<bdi>{}</bdi>").format(truth)
    return Markup(
        '<bdi>{}</bdi> <span class="wrong"><span aria-hidden="true">→</span>'
        '<span class="quiet"> mistaken for </span> <bdi>{}</bdi></span>'
    ).format(truth, guess)


def filled(*rows: tuple[str, str]) -> list[DefinitionList]:
    """Return the rows that have a value, as a list of names and values; nothing without any."""
    known = [row for row in rows if row[1]]
    return [DefinitionList(known)] if known else []


Columns = list[tuple[str, Sequence[str] | None]]


def table_of(title: str, columns: Columns, note: str = "", texts: int = 1) -> ReportTable:
    """Return a table of columns, each with its heading; one that is None is left out."""
    known = [(name, cells) for name, cells in columns if cells is not None]
    rows = list(zip(*(cells for _, cells in known), strict=True))
    return ReportTable(title, tuple(name for name, _ in known), rows, note=note, texts=texts)


def bar(share: float) -> Markup:
    """Return a share as a bar; a number stands beside it."""
    return Markup(
        '<span class="track" aria-hidden="true"><span style="width:{:.1f}%"></span></span>'
    ).format(100 * share)


def common_folder(names: Iterable[str]) -> str:
    """Return the folder that all names begin with, which says nothing of each; empty for none."""
    folders = [name.rpartition("/")[0].split("/") for name in dict.fromkeys(names)]
    alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
    shared = [parts[0] for parts in alike] if len(folders) > 1 else []
    return "/".join(shared) + "/" if any(shared) else ""


def setting(choice: Any) -> str:
    """Return a value of the recipe as a reader expects it."""
    match choice:
        case None:
            return "–"
        case bool():
            return "yes" if choice else "no"
        case list() | tuple():
            return ", ".join(setting(item) for item in choice) or "–"
        case float():
            return f"{choice:g}"
        case _:
            return str(choice) or "–"
