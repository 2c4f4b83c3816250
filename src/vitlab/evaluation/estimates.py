"""Numbers of images, as a run that learned them estimates them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.open import open_images
from vitlab.data.settings import Columns
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.records import answered
from vitlab.models.heads.regress import Estimates
from vitlab.progress import Meter
from vitlab.weights.regressor import load_regressor


def named_estimates(found: Estimates, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return `values`, and `deviations` if there are any, of each image by target."""
    tables = {key: own.tolist() for key, own in found._asdict().items() if own is not None}
    return [
        {key: dict(zip(names, table[number], strict=True)) for key, table in tables.items()}
        for number in range(len(found.values))
    ]


def estimate(
    run: str | Path, data: Any, compute: Compute, columns: Columns | None = None
) -> dict[str, Any]:
    """Estimate the numbers of images.

    Args:
        run: of `--task regress`
        data: images, as `vitlab.data.open.open_images`
        compute: where, and how many processes decode
        columns: the columns of a list

    Returns:
        model, images, damaged; estimates: of each image its name, `values` and `deviations` by
        target, or the `error`.

    Raises:
        DataError: no such images.
    """
    regressor = load_regressor(run)
    source = open_images(data, "none", columns=columns).every()
    names = regressor.about.targets
    with Meter(len(source), title="estimating") as meter:
        seen = features_in_memory(regressor.model, source, compute, progress=meter.images)
    estimates = named_estimates(regressor.estimates(seen.values), names)
    found = dict(zip(seen.indices.tolist(), estimates, strict=True))
    damaged = np.setdiff1d(np.arange(len(source)), seen.indices).tolist()
    found |= {n: {"error": text} for n, text in zip(damaged, seen.bad, strict=True)}
    return answered(regressor.model, "estimates", source, found)
