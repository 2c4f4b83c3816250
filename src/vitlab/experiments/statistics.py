"""Mean, deviation and interval of the figures of several runs, and the table that shows them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitlab.evaluation.metrics import METRICS
from vitlab.report.table_page import Table

LEVEL = 0.95
OF_RUN = ("images", "learned_from", "seconds", "run")  # of a row in a result, beside figures

Row = dict[str, Any]
"""A cell in JSON: its labels, its figures, or `diverged` and a message, and `run`, its folder."""


def kept(row: Row, *labels: str) -> Row:
    """Return what a result has of a row: its labels and the figures of the test."""
    return {key: row[key] for key in (*labels, *METRICS, *OF_RUN) if key in row}


def learned_before(rows: Sequence[Row]) -> Row:
    """Return how many test images of some runs were learned from before them, and a note on it."""
    known = sum(row.get("learned_from", 0) for row in rows)
    if not known:
        return {}
    note = (
        f"{known:,} of {sum(row['images'] for row in rows):,} test images were learned from by the "
        "weights or the teacher of these runs: figures are too good"
    )
    return {"learned_from": known, "notes": [note]}


def mean_and_std(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return `mean` and `std`, the sample standard deviation, of each figure that all rows have."""
    names = [key for key in METRICS if all(row.get(key) is not None for row in rows)]
    values = {name: [row[name] for row in rows] for name in names}
    return {
        "mean": {name: float(np.mean(values[name])) for name in names},
        "std": {name: float(np.std(values[name], ddof=1)) for name in names},
    }


def intervals_of_means(found: dict[str, dict[str, float]], runs: int) -> dict[str, list[float]]:
    """Return the 95% confidence interval of each mean over runs, by Student's t.

    Args:
        found: from `mean_and_std`
        runs: how many there were
    """
    reach = t_quantile(runs - 1, LEVEL) / math.sqrt(runs)
    result = {}
    for name, mean in found["mean"].items():
        ends = [mean - reach * found["std"][name], mean + reach * found["std"][name]]
        share = METRICS[name].unit == "percent"
        result[name] = [min(max(end, 0.0), 1.0) for end in ends] if share else ends
    return result


def t_quantile(freedom: float, level: float) -> float:
    """Return how far from 0 the middle share `level` of Student's t distribution reaches."""
    from scipy import special  # slow to import

    return float(special.stdtrit(freedom, (1 + level) / 2))


def table_of(what: str, result: Row, more: dict[str, Row], note: str) -> Table:
    """Return the table of all runs, then of their mean, their deviation and further rows.

    Args:
        what: the label that tells the rows apart, `seed`
        result: has `runs`, `mean` and `std`
        more: further rows by their titles
        note: a sentence above it
    """
    rows = [(str(row[what]), row) for row in result["runs"]]
    rows += [("mean", result["mean"]), ("standard deviation", result["std"]), *more.items()]
    metrics = [METRICS[name] for name in result["mean"]]
    texts = [(name, *(each.text(row[each.name]) for each in metrics)) for name, row in rows]
    head = (what, *(each.word for each in metrics))
    return Table(f"{what.capitalize()}s", head, texts, note=note)


def lead_of(result: Row, runs: str) -> str:
    """Return the sentence that a page begins with: the first figure of all `runs`."""
    first = METRICS[next(iter(result["mean"]))]
    mean, std = (first.text(result[key][first.name]) for key in ("mean", "std"))
    return (
        f"{first.title} {mean} ± {std}: mean and standard deviation of {runs}, "
        f"{result['images']:,} images."
    )
