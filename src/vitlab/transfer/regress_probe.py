"""`vitlab.probe(..., targets="a,b")`: ridge regression on frozen features, and its run."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.holdout import fingerprint, seen_by
from vitlab.data.labels import TargetLabels
from vitlab.data.targets import open_targets, standardized
from vitlab.evaluation.features import cache_of, features_of
from vitlab.evaluation.probes.searching import choices_of, ending_after, find_ridge
from vitlab.evaluation.regression import measure_targets
from vitlab.models.model import Model
from vitlab.progress import named_if_slow, say
from vitlab.recipes.head_search import HeadSearch
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.ending import Run
from vitlab.transfer.segment_probe import (
    begun,
    check_damage,
    cost_of,
    headless,
    keep_run,
    known_run,
)
from vitlab.weights.identity import fingerprint as model_fingerprint
from vitlab.weights.regressor import Regressor, Targets


def regress_by(
    recipe: Recipe,
    searched: HeadSearch,
    folder: RunFolder,
    data: Any,
    start: Model | None,
    host: Host,
    command: str,
    cache: str | Path | None,
) -> Run:
    """Fit a regressor, test it, and leave a run folder, or return the run that is there.

    Args:
        recipe: of `probe_recipe`: data, targets, weights, the model's fields
        searched: how many of the last blocks are tried, and in how many folds
        folder: of the run: free, or that of the finished run
        data: a table by its name, or in memory
        start: a model in hand; None for the recipe's weights
        host: device, workers, …
        command: what the user typed
        cache: folder in which features are kept; None for nowhere

    Raises:
        UserError: as `vitlab.probe`.
    """
    began, names = time.monotonic(), recipe.pretext.columns
    splits = standardized(open_targets(data, names, recipe.data))
    base, train = headless(recipe, start), splits.train
    marks = fingerprint(splits.whole or train), model_fingerprint(base)
    if folder.started:
        return known_run(folder, *marks)
    compute = begun(host, splits)
    vectors, choices = choices_of(base, searched.layers, recipe.model.chosen().get("pool", ""))
    learn = features_of(
        base, train, compute, vectors, cache=cache_of(cache), title="training features"
    )
    with named_if_slow("fitting the regressor"):
        found = find_ridge(train, learn, choices, searched.folds)
    model = ending_after(base, found.choice, {})
    model.seen = np.union1d(base.seen, seen_by(splits, labeled=True))
    model.provenance |= {
        "data": recipe.data.data, "fingerprint": marks[0],
        "held_out": recipe.data.test_fraction if splits.whole is not None else 0.0,
    }  # fmt: skip
    assert isinstance(train.labels, TargetLabels)
    scale = train.labels.scale
    regressor = Regressor(model, Targets(names, True), **found.layer(), scale=scale)
    with named_if_slow(f"testing on {len(splits.test):,} images"):
        tested, damaged = measure_targets(regressor, splits.test, compute)
    bad = list(dict.fromkeys([*learn.bad, *damaged]))
    lost = check_damage(bad, splits, host.max_bad)
    about = found.about | {"pool": found.choice.pool or "features", "asked": searched.as_table()}
    line = (
        f"head: ridge (l2 {about['l2']:g}) on {about['pool']} after block {about['layer']}, the "
        f"best of {len(found.tried)} that were tried: R² {about['r2']:.3f} of images left out"
    )
    say(line)
    figures = tested | cost_of(model, regressor, compute) | {
        "seconds": time.monotonic() - began, "damaged": len(bad), "images": len(train),
        "test_images": tested["images"], "task": "regress", "head": about, "tried": found.tried,
        "notes": [*splits.notes, line, *lost],
    }  # fmt: skip

    def report() -> None:
        from vitlab.report.pretext_report import write_pretext_report  # slow to import

        write_pretext_report(folder, model, figures, {}, figures["notes"])

    return keep_run(folder, recipe, host, command, marks, regressor, figures, report)
