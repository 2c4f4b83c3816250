"""Pages made of tables and drawings, for several runs together; what every page has in common."""

import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.files import staged_file

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@dataclass(frozen=True)
class Table:
    """A table of a page, everything in it being text.

    Attributes:
        title: its heading
        head: a heading for each column
        rows: as many cells each
        marked: the number of the row that was chosen, if one was
        note: a sentence above it
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    marked: int | None = None
    note: str = ""


@dataclass(frozen=True)
class TablePage:
    """What a page of tables shows, in this order."""

    title: str
    lead: str
    tables: Sequence[Table] = ()
    drawings: "Sequence[Markup]" = ()
    notes: Sequence[str] = ()
    command: str = ""


def write_tables(file: Path, page: TablePage) -> Path:
    """Write tables and drawings as one HTML file that needs no other; return the file.

    Raises:
        DiskError: the file cannot be written.
    """
    return save_page(file, templates().get_template("tables.html.jinja").render(page=page))


def templates() -> "Environment":
    """Return the templates of this folder; they escape what they show."""
    import jinja2

    from vitlab.report.drawings import theme

    folder = importlib.resources.files("vitlab.report") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "light": theme.variables(theme.LIGHT), "dark": theme.variables(theme.DARK),
        "light_cells": theme.cells(theme.LIGHT), "dark_cells": theme.cells(theme.DARK),
    }  # fmt: skip
    return environment


def save_page(file: Path, text: str) -> Path:
    """Write a page; an older one is replaced only by a complete one.

    Raises:
        DiskError: the file cannot be written.
    """
    content = text.encode("utf-8", "backslashreplace")  # file names need not be Unicode
    with staged_file(file) as draft:
        draft.write_bytes(content)
    return file
