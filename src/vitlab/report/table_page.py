"""Pages of tables and drawings: of campaigns, studies and scores over several runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from vitlab.report.page import Page, Plot, Plots, Section, Table, write_page

__all__ = ["Table", "TablePage", "write_tables"]


@dataclass(frozen=True)
class TablePage:
    """What a page of tables shows, in this order."""

    title: str
    lead: str
    tables: Sequence[Table] = ()
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
        Section(f"table-{number}", table.title, [_without_empty(table)], folded=False)
        for number, table in enumerate(page.tables, 1)
    ]
    whole = Page(page.title, page.lead, [*drawn, *tables], page.notes, page.command)
    return write_page(file, whole)


def _without_empty(table: Table) -> Table:
    """Return a table without the columns in which no row has anything."""
    kept = [
        n for n in range(len(table.head)) if not table.rows or any(row[n] for row in table.rows)
    ]
    rows = [tuple(row[n] for n in kept) for row in table.rows]
    texts = sum(n < table.texts for n in kept)
    return replace(table, head=tuple(table.head[n] for n in kept), rows=rows, texts=texts)
