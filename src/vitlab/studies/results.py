"""What the runs of a study come to: rows, verdicts, the table as text, and the files it leaves."""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.files import write_text
from vitlab.report.drawings.drawing import standalone
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.studies.claims import Verdict, judged
from vitlab.studies.design import Column, Row, Study
from vitlab.studies.jobs import FAILED, Figures, Job, edge_of, tried
from vitlab.studies.picture import drawn
from vitlab.units import percent

Lines = list[tuple[str, ...]]
EDGES = {-1: " ‡", 0: "", 1: " †"}
EDGE_NOTE = (
    "† the largest of the learning rates that were tried, ‡ the smallest: one beyond it might do "
    "better."
)


def rows_of(study: Study, jobs: Sequence[Job], done: Mapping[str, Figures]) -> list[Row]:
    """Return a row for each arm of the table whose runs are done."""
    rows: dict[str, list[Job]] = {}
    for job in jobs:
        if job.arm.row and not job.searches and job.name in done:
            rows.setdefault(job.arm.name, []).append(job)
    return [_row(study, own, done) for own in rows.values()]


def _row(study: Study, jobs: Sequence[Job], done: Mapping[str, Figures]) -> Row:
    arm, runs = jobs[0].arm, [done[job.name] for job in jobs]
    values = {
        column.key: [run[column.key] for run in runs if run.get(column.key) is not None]
        for column in study.columns
    }
    return {
        "name": arm.name,
        "cells": list(arm.cells),
        "lr": arm.recipe.optimizer.lr * jobs[0].factor(done),
        "edge": edge_of(tried(jobs[0].choices, done)),
        "x": arm.x,
        "line": arm.line,
        "after": arm.after,
        "seeds": [job.seed for job in jobs],
        "runs": [job.name for job in jobs],
        "diverged": sum(FAILED in run for run in runs),
        "values": values,
        "mean": {key: fmean(found) for key, found in values.items() if found},
        "std": {key: stdev(found) for key, found in values.items() if len(found) > 1},
        "paper": dict(arm.paper),
    }


def verdicts(study: Study, rows: Sequence[Row]) -> list[Verdict]:
    """Return what the rows say about each claim."""
    keys = {claim.by: claim.by or study.columns[0].key for claim in study.claims}
    figures = {
        by: {row["name"]: row["values"].get(key, []) for row in rows} for by, key in keys.items()
    }
    starts = {row["name"]: row["after"] for row in rows if not row["diverged"]}
    return judged(study.claims, figures, starts)


def cell(row: Row, column: Column) -> str:
    """Return a figure as the table shows it: mean and standard deviation over its runs."""
    if column.key not in row["mean"]:
        return "diverged" if row["diverged"] else ""
    text = column.show(row["mean"][column.key])
    if column.once or column.key not in row["std"]:
        return text
    return f"{text} ± {(column.spread or column.show)(row['std'][column.key])}"


def lost(row: Row) -> str:
    """Return how many runs of a row did not diverge, if others did, to stand behind a figure."""
    runs = len(row["seeds"])
    left = runs - row["diverged"]
    return f" ({left} of {runs} runs)" if 0 < left < runs else ""


def table_of(study: Study, rows: Sequence[Row]) -> tuple[tuple[str, ...], Lines]:
    """Return headings and lines: the arm, its figures, each beside the paper's if there is one.

    A learning rate at the edge of those that were tried is marked.
    """
    columns = [each for each in study.columns if any(each.key in row["mean"] for row in rows)]
    columns = columns or [study.columns[0]]  # which tells that everything diverged
    rated = len({row["lr"] for row in rows}) > 1 or any(row["edge"] for row in rows)
    printed: dict[str, Callable[[float], str]] = dict.fromkeys(
        (key for row in rows for key in row["paper"]), percent
    )
    printed |= {each.key: each.show for each in columns if each.key in printed}
    own = {column.key for column in study.columns}
    others = [key for key in printed if key not in own]

    def line(row: Row) -> tuple[str, ...]:
        paper = {
            key: show(row["paper"][key]) for key, show in printed.items() if key in row["paper"]
        }
        cells = [*row["cells"], *([f"{row['lr']:.2g}{EDGES[row['edge']]}"] if rated else [])]
        for column in columns:
            cells.append(cell(row, column) + (lost(row) if column is columns[0] else ""))
            cells += [paper.get(column.key, "")] if column.key in printed else []
        return (*cells, *(paper.get(key, "") for key in others))

    head = [*study.head, *(["learning rate"] if rated else [])]
    for column in columns:
        head += [column.title, *([f"paper: {column.title}"] if column.key in printed else [])]
    return (*head, *(f"paper: {key}" for key in others)), [line(row) for row in rows]


CLAIMS = ("claim", "paper", "here", "difference ± 95%", "the paper's", "margin", "p (Holm)")


def claims_table(study: Study, found: Sequence[Verdict]) -> Lines:
    """Return the lines of the claims, in the columns of `CLAIMS`.

    Differences of shares are in percentage points. Where seeds share weights, the interval of the
    differences within each seed comes first, that of independent runs second.
    """
    columns = {column.key: column for column in study.columns}
    lines: Lines = []
    for each in found:
        claim, column = each.claim, columns[each.claim.by or study.columns[0].key]
        show = column.spread or (lambda value: f"{value:.3g}")

        def signed(value: float | None, show: Callable[[float], str] = show) -> str:
            return "" if value is None else f"{'-' if value < 0 else '+'}{show(abs(value))}"

        difference = signed(each.difference)
        if each.paired is not None and each.reach is not None:
            difference += f" ± {show(each.paired)} in pairs (± {show(each.reach)} apart)"
        elif each.reach is not None:
            difference += f" ± {show(each.reach)}"
        if difference and column.spread is None:
            difference += f" {column.title}"
        margin = "" if each.margin is None else show(each.margin)
        p = "" if each.p is None else f"{each.p:.2g}" if each.p >= 0.001 else "< 0.001"
        lines.append(
            (claim.text, claim.source, each.word, difference, signed(claim.paper), margin, p)
        )
    return lines


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rule = ["---"] * len(head)
    rows = [[cell.replace("|", "\\|") for cell in each] for each in (head, rule, *lines)]
    return "\n".join("| " + " | ".join(each) + " |" for each in rows) + "\n"


def written(
    study: Study, rows: Sequence[Row], folder: CampaignFolder, lead: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `results.md`, its picture, `report.html` and the result in JSON; return the result.

    Args:
        study: what was compared
        rows: its arms
        folder: of the runs
        lead: how they were made, in a sentence or two
        facts: the same in JSON

    Raises:
        DiskError: a file cannot be written.
    """
    place, found = folder.path, verdicts(study, rows)
    (head, lines), claims = table_of(study, rows), claims_table(study, found)
    findings = list(study.findings(rows)) if study.findings else []
    edges = EDGE_NOTE if any(row["edge"] for row in rows) else ""
    note = " ".join(filter(None, (study.note, edges)))
    command, drawing = folder.record.get("command", ""), drawn(study, rows)
    result = {
        **facts,
        "title": study.title,
        "head": list(head),
        "table": [list(line) for line in lines],
        "rows": list(rows),
        "claims": [verdict.as_json() for verdict in found],
        "findings": findings,
        "run": str(place),
        "report": str(folder.report),
    }
    text = [f"# {study.title}", lead, f"`{command}`", markdown(head, lines).rstrip()]
    text += filter(None, (note, *findings))
    tables = [Table("Results", head, lines, note=note)]
    if claims:
        text.append(markdown(CLAIMS, claims).rstrip())
        tables.append(Table("Claims", CLAIMS, claims))
    if drawing is not None:
        write_text(place / "picture.svg", standalone(drawing) + "\n")
        text.append(f"![{study.title}](picture.svg)")
    write_text(place / "results.md", "\n\n".join(text) + "\n")
    page = TablePage(study.title, lead, tables, [drawing] if drawing else [], findings, command)
    write_tables(folder.report, page)
    folder.finish(json.loads(json.dumps(result)))
    return result
