"""The figures of several runs together: their rows, their mean, their deviation, their table."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitlab.errors import DivergedError
from vitlab.evaluation.metrics import METRICS
from vitlab.report.table_page import Table
from vitlab.transfer.trials import Outcome

LEVEL = 0.95

Row = dict[str, Any]
"""A run in JSON: which one it is, its figures, `images`, `seconds`, and `run`, its folder."""


def row_of(what: str, value: str | int, outcome: Outcome) -> Row:
    """Return the row of a run that differs from the others in one thing, such as its seed.

    Raises:
        DivergedError: the run diverged: a mean over the others would be too good.
    """
    if outcome.run is None:
        cause = outcome.diverged.split(":")[0]
        raise DivergedError(f"{what} {value} diverged: {cause}: try a lower --lr and another --out")
    metrics = outcome.run.metrics
    kept = [key for key in (*METRICS, "images", "learned_from", "seconds") if key in metrics]
    return {what: value} | {key: metrics[key] for key in kept} | {"run": str(outcome.folder.path)}


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


def t_quantile(freedom: int, level: float) -> float:
    """Return how far from 0 the middle share `level` of Student's t distribution reaches."""
    from scipy import special  # slow to import

    return float(special.stdtrit(freedom, (1 + level) / 2))


def table_of(title: str, what: str, result: Row, more: dict[str, Row], note: str) -> Table:
    """Return the table of all runs, then of their mean, their deviation and further rows.

    Args:
        title: its heading
        what: the key of a row's own name
        result: has `runs`, `mean` and `std`
        more: further rows by their titles
        note: a sentence above it
    """
    names = list(result["mean"])
    rows = [_cells(str(row[what]), row, names) for row in result["runs"]]
    last = {"mean": result["mean"], "standard deviation": result["std"]} | more
    rows += [_cells(name, values, names) for name, values in last.items()]
    return Table(title, (what, *(METRICS[name].word for name in names)), rows, note=note)


def lead_of(result: Row, runs: str) -> str:
    """Return the sentence that a page begins with: the first figure of all `runs`."""
    first = METRICS[next(iter(result["mean"]))]
    mean, std = (first.text(result[key][first.name]) for key in ("mean", "std"))
    return (
        f"{first.title} {mean} ± {std}: mean and standard deviation of {runs}, "
        f"{result['images']:,} images."
    )


def _cells(title: str, values: Row, names: Sequence[str]) -> tuple[str, ...]:
    return (title, *(METRICS[name].text(values[name]) for name in names))
