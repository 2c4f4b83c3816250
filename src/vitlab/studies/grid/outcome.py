"""What the runs of a study come to: mean and standard deviation of every figure of every arm."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from vitlab.studies.grid.design import Column, Study
from vitlab.studies.grid.jobs import Figures, Job, chosen
from vitlab.studies.grid.paper_claims import Verdict, judged

Row = dict[str, Any]
"""An arm in JSON: `name`, `cells`, `lr`, `runs` (folders), `values`, `mean`, `paper` and so on."""


def rows_of(study: Study, jobs: Sequence[Job], done: Mapping[str, Figures]) -> list[Row]:
    """Return a row for each arm of the table whose runs are done."""
    rows: dict[str, list[Job]] = {}
    for job in jobs:
        if job.arm.row and not job.rate and job.name in done:
            rows.setdefault(job.arm.name, []).append(job)
    return [_row(study, own, done) for own in rows.values()]


def _row(study: Study, jobs: Sequence[Job], done: Mapping[str, Figures]) -> Row:
    arm, runs = jobs[0].arm, [done[job.name] for job in jobs]
    values = {column.key: values_of(runs, column.key) for column in study.columns}
    return {
        "name": arm.name,
        "cells": list(arm.cells),
        "lr": arm.recipe.optimizer.lr * chosen(jobs[0].choices, done),
        "x": arm.x,
        "line": arm.line,
        "seeds": [job.seed for job in jobs],
        "runs": [job.name for job in jobs],
        "diverged": sum("diverged" in run for run in runs),
        "values": values,
        "mean": {key: fmean(found) for key, found in values.items() if found},
        "std": {key: stdev(found) for key, found in values.items() if len(found) > 1},
        "paper": dict(arm.paper),
    }


def values_of(runs: Sequence[Figures], key: str) -> list[float]:
    """Return a figure of all runs that have it."""
    return [run[key] for run in runs if run.get(key) is not None]


def verdicts(study: Study, rows: Sequence[Row]) -> list[Verdict]:
    """Return what the rows say about each claim."""
    found = []
    for claim in study.claims:
        key = claim.by or study.columns[0].key
        found.append(judged(claim, {row["name"]: row["values"].get(key, []) for row in rows}))
    return found


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
