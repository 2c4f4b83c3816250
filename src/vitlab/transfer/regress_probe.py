"""`vitlab.probe(..., targets="a,b")`: ridge regression on frozen features, and its run."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitlab import device as devices
from vitlab.data.holdout import fingerprint, seen_by
from vitlab.data.labels import Labels, Numbers, TargetLabels
from vitlab.data.sources.source import Source
from vitlab.data.targets import open_targets, standardized
from vitlab.errors import OptionError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import ImageFeatures, cache_of, features_of
from vitlab.evaluation.probes.heads import (
    Blocks,
    LinearHead,
    least_squares,
    left_one_out,
)
from vitlab.evaluation.probes.searching import (
    FINALISTS,
    FeatureChoice,
    choices_of,
    ending_after,
    folds_of,
)
from vitlab.evaluation.regression import measure_targets
from vitlab.models.model import Model
from vitlab.progress import named_if_slow, say
from vitlab.recipes.head_search import HeadSearch
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.transfer.segment_probe import check_damage, cost_of, headless, keep_run
from vitlab.weights.identity import fingerprint as model_fingerprint
from vitlab.weights.regressor import Regressor, Targets


class FoundRidge(NamedTuple):
    """The best ridge regression, fitted to all training images.

    Attributes:
        choice: what it sees
        head: its weights and bias, of standardized targets
        errors: of images that it had not learned from, in cross-validation, (n, targets)
        about: `layer`, `pool`, `head`, `l2`, and `r2` with `how` it was found
        tried: the same of each that was tried
    """

    choice: FeatureChoice
    head: LinearHead
    errors: Numbers
    about: dict[str, Any]
    tried: list[dict[str, Any]]


def regress_by(
    recipe: Recipe,
    searched: HeadSearch,
    folder: RunFolder,
    data: Any,
    start: Model | None,
    host: Host,
    command: str,
    cache: str | Path | None,
) -> tuple[Model, dict[str, Any]]:
    """Fit a regressor, test it, and leave a run folder; return its model and figures.

    Args:
        recipe: of `probe_recipe`: data, targets, weights, the model's fields
        searched: how many of the last blocks are tried, and in how many folds
        folder: of the run, free
        data: in memory; None for that of the recipe
        start: a model in hand; None for the recipe's weights
        host: device, workers, …
        command: what the user typed
        cache: folder in which features are kept; None for nowhere

    Raises:
        UserError: as `vitlab.probe`.
    """
    began, names = time.monotonic(), recipe.pretext.columns
    if searched.by not in ("auto", "ridge"):
        raise OptionError(f"by={searched.by} is for classes: with task=regress leave it out")
    opened = open_targets(recipe.data.data if data is None else data, names, recipe.data)
    splits = standardized(opened)
    base, train = headless(recipe, start), splits.train
    compute = Compute(devices.choose(host.device), workers=host.workers)
    devices.restart_peak(compute.where)
    vectors, choices = choices_of(base, searched.layers, recipe.model.chosen().get("pool", ""))
    learn = features_of(
        base, train, compute, vectors, cache=cache_of(cache), title="training features"
    )
    with named_if_slow("fitting the regressor"):
        found = find_ridge(train, learn, choices, searched.folds)
    model = ending_after(base, found.choice, {})
    model.seen = np.union1d(base.seen, seen_by(splits, labeled=True))
    marks, options = fingerprint(splits.whole or train), recipe.data
    model.provenance |= {
        "data": options.data, "fingerprint": marks,
        "held_out": options.test_fraction if splits.whole is not None else 0.0,
    }  # fmt: skip
    regressor = _with_spread(model, Targets(names, True), found, train.labels)
    with named_if_slow(f"testing on {len(splits.test):,} images"):
        tested, damaged = measure_targets(regressor, splits.test, compute)
    bad = list(dict.fromkeys([*learn.bad, *damaged]))
    check_damage([*enumerate(bad)], len(train) + len(splits.test), host.max_bad)
    about = found.about
    line = (
        f"head: ridge (l2 {about['l2']:g}) on {about['pool']} after block {about['layer']}, the "
        f"best of {len(found.tried)} that were tried: R² {about['r2']:.3f} of images left out"
    )
    say(line)
    figures = tested | cost_of(regressor, compute) | {
        "seconds": time.monotonic() - began, "damaged": len(bad), "images": len(train),
        "test_images": tested["images"], "task": "regress", "head": about, "tried": found.tried,
        "notes": [*splits.notes, line, *(f"skipped: {text}" for text in bad)],
    }  # fmt: skip

    def report() -> None:
        from vitlab.report.pretext_report import write_pretext_report  # slow to import

        write_pretext_report(folder, model, figures, {}, figures["notes"])

    sums = marks, model_fingerprint(base)
    return keep_run(folder, recipe, host, command, sums, regressor, figures, report)


def find_ridge(
    source: Source, learn: ImageFeatures, choices: list[FeatureChoice], folds: int
) -> FoundRidge:
    """Find features and penalty by the squared error of images left out; fit to all images.

    Leave-one-out in closed form ranks all features and penalties; the two best are
    cross-validated, groups of images staying together.

    Args:
        source: images with numbers, which are standardized
        learn: their features
        choices: of the features
        folds: how many

    Raises:
        DataError: too few images for two folds.
    """
    y = source.labels.take(learn.indices).targets().astype(np.float64)
    dealt = folds_of(source, learn.indices, np.zeros(len(y), np.int64), folds)
    ranks, tried, crossed = [], list[dict[str, Any]](), list[FoundRidge]()
    for choice in choices:
        outputs = left_one_out(Blocks(choice.of(learn.values)).whole(), y)
        r2, l2 = max((explained(y - each), l2) for l2, each in outputs)
        tried.append(_trial(choice, l2, r2, "leave-one-out"))
        ranks.append((-r2, choice.width, -choice.layer, choice, l2))
    for *_, choice, l2 in sorted(ranks, key=lambda each: each[:3])[:FINALISTS]:
        x, errors = choice.of(learn.values), np.empty(y.shape)
        for part in np.unique(dealt):
            own = dealt == part
            errors[own] = y[own] - least_squares(Blocks(x[~own]), y[~own], l2).logits(x[own])
        tried.append(_trial(choice, l2, explained(errors), f"{len(np.unique(dealt))} folds"))
        head = least_squares(Blocks(x), y, l2)
        crossed.append(FoundRidge(choice, head, errors, tried[-1], tried))
    return max(crossed, key=lambda each: float(each.about["r2"]))


def _with_spread(model: Model, about: Targets, found: FoundRidge, labels: Labels) -> Regressor:
    """Return a regressor whose deviations are those of the errors in cross-validation."""
    assert isinstance(labels, TargetLabels)
    spread = np.log(np.square(found.errors).mean(0))
    weight = np.concatenate([found.head.weights, np.zeros_like(found.head.weights)])
    return Regressor(model, about, weight, np.concatenate([found.head.bias, spread]), labels.scale)


def explained(errors: Numbers) -> float:
    """Return R² of standardized targets, the mean over them."""
    return 1 - float(np.square(errors).mean())


def _trial(choice: FeatureChoice, l2: float, r2: float, how: str) -> dict[str, Any]:
    about = {"head": "ridge", "l2": l2, "r2": r2, "how": how}
    return {"layer": choice.layer, "pool": choice.pool or "features"} | about
