"""The table of a study as text: on the terminal, on the page, in Markdown."""

from collections.abc import Sequence
from typing import Any

from vitlab.studies.grid.design import Column, Study
from vitlab.studies.grid.outcome import Row, cell, lost
from vitlab.studies.grid.paper_claims import Verdict
from vitlab.units import percent

Lines = list[tuple[str, ...]]


def table_of(study: Study, rows: Sequence[Row]) -> tuple[tuple[str, ...], Lines]:
    """Return headings and lines: the arm, its figures, each beside the paper's if there is one."""
    columns = [each for each in study.columns if any(each.key in row["mean"] for row in rows)]
    columns = columns or [study.columns[0]]  # which tells that everything diverged
    rates = {row["lr"] for row in rows}
    head = (*study.head, *(("learning rate",) if len(rates) > 1 else ()))
    for column in columns:
        head += (column.title, *((f"paper: {column.title}",) if _printed(column, rows) else ()))
    head += tuple(f"paper: {key}" for key in _others(study, rows))
    return head, [_line(study, row, rows, columns, len(rates) > 1) for row in rows]


def _line(
    study: Study, row: Row, rows: Sequence[Row], columns: Sequence[Column], rated: bool
) -> tuple[str, ...]:
    line = (*row["cells"], *((f"{row['lr']:.2g}",) if rated else ()))
    for column in columns:
        line += (cell(row, column) + (lost(row) if column is columns[0] else ""),)
        if _printed(column, rows):
            known = row["paper"].get(column.key)
            line += ("" if known is None else column.show(known),)
    for key in _others(study, rows):
        known = row["paper"].get(key)
        line += ("" if known is None else percent(known),)
    return line


def _printed(column: Column, rows: Sequence[Row]) -> bool:
    return any(column.key in row["paper"] for row in rows)


def _others(study: Study, rows: Sequence[Row]) -> list[str]:
    """Return the figures, shares of something, that only the paper has."""
    own = {column.key for column in study.columns}
    return list(dict.fromkeys(key for row in rows for key in row["paper"] if key not in own))


def claims_table(study: Study, verdicts: Sequence[Verdict]) -> tuple[tuple[str, ...], Lines]:
    """Return headings and lines of the claims; differences of shares are in percentage points."""
    columns = {column.key: column for column in study.columns}
    lines: Lines = []
    for each in verdicts:
        column = columns[each.claim.by or study.columns[0].key]
        show = column.spread or (lambda value: f"{value:.3g}")
        found = ""
        if each.difference is not None:
            found = f"{'-' if each.difference < 0 else '+'}{show(abs(each.difference))}"
        if each.reach is not None:
            found += f" ± {show(each.reach)}"
        lines.append((each.claim.text, each.word, found))
    return ("claim", "here", "difference ± 95%"), lines


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rule = ["---"] * len(head)
    rows = [[cell.replace("|", "\\|") for cell in each] for each in (head, rule, *lines)]
    return "\n".join("| " + " | ".join(each) + " |" for each in rows) + "\n"


def as_json(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the verdicts as JSON values."""
    return [
        {
            "claim": each.claim.text,
            "verdict": each.word,
            "difference": each.difference,
            "interval": each.reach,
        }
        for each in verdicts
    ]
