"""Regression figures: errors, R² and the calibration of spreads, with intervals over images.

MAE and RMSE are in a target's own units; R² is the share of its variance on these images that is
explained (scikit-learn's `r2_score`), below 0 where their mean would be nearer. Where answers have
a deviation, `nll` is the mean negative log-likelihood of the normal distribution, and `coverage_50`
and `coverage_90` how many images lie within its central 50 and 90%: fewer, and deviations are too
small. Images are drawn again with replacement for the 95% intervals (`evaluation.intervals`).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.images import Images
from vitlab.data.number_targets import Numbers, numbers_of
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Columns
from vitlab.errors import DataError
from vitlab.evaluation.answers import finite, mean_known, ratio
from vitlab.evaluation.choosing import Split, as_held_out, as_trained, chosen
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.intervals import RESAMPLES, interval_of, redrawn
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.records import EvaluationRecord, recorded
from vitlab.evaluation.reliability import REACH
from vitlab.models.heads.regress import Estimates, Regressor
from vitlab.weights.regressor import load_regressor

WITHIN = {"coverage_50": 0.6744897501960817, "coverage_90": 1.6448536269514722}  # deviations


# Figures


def target_figures(
    truth: Numbers, found: Estimates, names: Sequence[str], resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Return the figures of each target, and their 95% intervals over images.

    Args:
        truth: (n, targets)
        found: of the same n images
        names: of the targets
        resamples: how many

    Returns:
        `r2`, the mean over the targets that have one, `intervals`, `images`, and `targets`: of each
        its name and figures, None where there is none: R² where all images are alike.
    """
    images = len(truth)
    errors = truth - found.values
    centered = truth - truth.mean(0)
    table = np.stack([np.abs(errors), errors**2, centered, centered**2], 1)
    drawn = [np.tensordot(each / images, table, 1) for each in redrawn(images, resamples)]
    points = _figures(table.mean(0)[None])
    samples = _figures(np.stack(drawn))
    rows = [{"target": name, "intervals": {}} for name in names]
    for number, row in enumerate(rows):
        for key, values in points.items():
            _put(row, key, values[0, number], samples[key][:, number], images)
        if found.deviations is not None:
            _put_spread(row, errors[:, number], found.deviations[:, number])
    result: dict[str, Any] = {"intervals": {}}
    _put(result, "r2", mean_known(points["r2"])[0], mean_known(samples["r2"]), images)
    return result | {"images": images, "targets": rows}


def _figures(means: Numbers) -> dict[str, Numbers]:
    """Return figures, (b, targets), by means over images, (b, 4, targets).

    They are of absolute and squared errors, of the centered truth and of its squares.
    """
    error, squares, middle, spread = np.moveaxis(means, 1, 0)
    lost = ratio(squares, spread - middle**2, np.nan)
    return {"mae": error, "rmse": np.sqrt(squares), "r2": 1 - lost}


def _put(row: dict[str, Any], key: str, value: float, samples: Numbers, images: int) -> None:
    """Put a figure and its interval, if it has one, into a row; that of R² is of what it lacks."""
    row[key] = finite(value)
    lost = key == "r2"
    of = (1 - value, 1 - samples) if lost else (value, samples)
    if ends := interval_of(METRICS[key], images, *of):
        row["intervals"][key] = [1 - each for each in ends[::-1]] if lost else [*ends]


def _put_spread(row: dict[str, Any], errors: Numbers, deviations: Numbers) -> None:
    """Put into a row how well deviations say how far off values are."""
    scores = np.abs(errors) / deviations
    images = len(errors)
    losses = scores**2 / 2 + np.log(deviations) + math.log(2 * math.pi) / 2
    row["nll"], reach = float(losses.mean()), REACH * float(losses.std()) / math.sqrt(images)
    if images >= METRICS["nll"].least:
        row["intervals"]["nll"] = [row["nll"] - reach, row["nll"] + reach]
    for key, within in WITHIN.items():
        _put(row, key, float((scores <= within).mean()), scores, images)


def measure_targets(
    regressor: Regressor, source: Images, compute: Compute, resamples: int = RESAMPLES
) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of a regressor on images with numbers, and messages about damaged ones.

    Raises:
        DataError: no image can be read.
    """
    seen = features_in_memory(regressor.model, source, compute)
    if not len(seen.indices):
        raise DataError(f"no image can be used: {seen.bad[0]}")
    truth = numbers_of(source)[seen.indices]
    found = regressor.estimates(seen.values)
    figures = target_figures(truth, found, regressor.about.targets, resamples)
    return figures | {"damaged": len(seen.bad)}, seen.bad


# Commands


def evaluate_targets(
    run: str | Path, data: str, split: Split, compute: Compute, columns: Columns | None = None
) -> EvaluationRecord:
    """Measure a run's regressor on images with numbers: the figures of `vitlab evaluate --json`.

    Args:
        run: of `--task regress`
        data: a table, as `open_images` takes it
        split: as for a classifier
        compute: where, and how many processes decode
        columns: the columns of the table

    Raises:
        DataError: no such split, no such columns, no image that can be used.
        WeightsError: as `load_regressor`.
    """
    regressor = load_regressor(run)
    began = time.monotonic()
    where = replace(columns or Columns(), label_column=regressor.about.targets)
    splits = open_to_learn(data, "numbers", where)
    model = regressor.model
    splits = as_trained(model, as_held_out(model, splits))
    images = chosen(model, splits, data, split)
    figures, bad = measure_targets(regressor, images.source, compute)
    return recorded(model, began, figures | {"data": data} | images.about, images.notes, bad)
