"""A comparison of runs as JSON values."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.paired_tests import Pair
from vitlab.report.comparing.entry import Entry
from vitlab.report.comparing.recipe_diff import differing, seed_groups
from vitlab.report.comparing.run_comparison import Compared

COSTS = ("images", "params", "macs", "images_per_second", "peak_memory", "seconds", "device")


def as_json(compared: Compared) -> dict[str, Any]:
    """Return what `vitlab.compare` returns, but for the page."""
    entries = compared.entries
    return {
        "images": 0 if compared.same is None else len(compared.same),
        "runs": [_run(each) for each in entries],
        "pairs": [_pair(compared, each) for each in compared.pairs],
        "recipe": {row.option: list(row.values) for row in differing(entries)},
        "seeds": [seeds_of(entries, group) for group in seed_groups(entries)],
        "notes": compared.notes,
    }


def seeds_of(entries: Sequence[Entry], group: Sequence[int]) -> dict[str, Any]:
    """Return mean and sample standard deviation of each figure that all runs of a group have."""
    runs = [entries[number] for number in group]
    values = {key: [each.number(key) for each in runs] for key in METRICS}
    known = {key: np.array(own, np.float64) for key, own in values.items() if None not in own}
    return {
        "runs": [str(each.folder.path) for each in runs],
        "seeds": [each.seed for each in runs],
        "mean": {key: float(own.mean()) for key, own in known.items()},
        "std": {key: float(own.std(ddof=1)) for key, own in known.items()},
    }


def _run(entry: Entry) -> dict[str, Any]:
    names = (*METRICS, *COSTS)
    kept = {key: entry.result[key] for key in names if key in entry.result}
    about: dict[str, Any] = {"run": str(entry.folder.path), "name": entry.name}
    about |= {"model": entry.model, "seed": entry.seed}
    about |= {"task": entry.task} if entry.task else {}
    ranges = {"intervals": entry.result["intervals"]} if "intervals" in entry.result else {}
    return about | {"finished": bool(entry.result)} | kept | ranges


def _pair(compared: Compared, pair: Pair) -> dict[str, Any]:
    """Return the tests of two runs, which are named; what is not a number becomes null."""
    assert compared.same is not None
    first, second = (
        str(compared.entries[compared.same.runs[place]].folder.path)
        for place in (pair.first, pair.second)
    )
    rest = {
        key: value
        for key, value in asdict(pair).items()
        if key not in ("first", "second", "differences")
    }
    differences = {
        name: {"value": _finite(each.value), "interval": each.interval and list(each.interval)}
        for name, each in pair.differences.items()
    }
    return {"first": first, "second": second} | rest | {"differences": differences}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
