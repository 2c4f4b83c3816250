"""Pages of tables and drawings: of campaigns, studies and scores over several runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from vitlab.report.page import Page, Plot, Plots, ReportTable, Section, write_page

__all__ = ["ReportTable", "TablePage", "write_tables"]


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
