"""`vitlab.probe` of masks and of numbers: a linear head for each pixel, or ridge regression."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab import device as devices
from vitlab.data.holdout import fingerprint, hold_out_some, training_hashes
from vitlab.data.images import Images
from vitlab.data.mask_targets import masks_of
from vitlab.data.number_targets import NumberTargets
from vitlab.data.open_splits import open_to_learn
from vitlab.data.sources.request import MaskReading
from vitlab.data.splits import Splits
from vitlab.data.standardize import standardize
from vitlab.errors import DataError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.feature_cache import cache_of, features_of
from vitlab.evaluation.mask_figures import measure
from vitlab.evaluation.probes.patch_heads import (
    FoundPatchHead,
    collected,
    find_patch_head,
    layer_sets,
)
from vitlab.evaluation.probes.searching import choices_of, ending_after, find_ridge
from vitlab.evaluation.records import RunRecord, cost_figures
from vitlab.evaluation.regression import measure_targets
from vitlab.evaluation.segmentation import Bad
from vitlab.models.heads.regress import Regressor, Targets
from vitlab.models.heads.segment import DenseClasses, PatchLayer, Segmenter, check_spec
from vitlab.models.model import Model
from vitlab.progress import named_if_slow, say
from vitlab.recipes.head_search import HeadSearch, MaskOptions
from vitlab.recipes.model_part import part_of
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.ending import finished, needs_report
from vitlab.training.from_weights import config_from, made_from, starting_model
from vitlab.training.leak_record import leak_figures
from vitlab.training.leaks import applied, find_leaks
from vitlab.training.observer import bearable
from vitlab.training.outcome import ObjectiveTest, Outcome, Run, SegmenterTest
from vitlab.training.resume import check_same
from vitlab.units import percent
from vitlab.weights.assembly import fitted, whole_state
from vitlab.weights.identity import fingerprint as model_fingerprint
from vitlab.weights.save import save
from vitlab.weights.save_head import save_head
from vitlab.weights.segmenter import load_segmenter

CHOOSE = 0.2  # of the training images: on these a head is chosen, where the data has none for it
NAMES = {"logistic": "logistic regression", "ridge": "ridge", "means": "class means"}


@dataclass(frozen=True, eq=False)
class ProbeRequest:
    """A head that is asked for; `vitlab.probe` says more.

    Attributes:
        recipe: of `probe_recipe`: data, weights, the model's fields, the seed
        searched: which heads are tried
        masks: how masks are read, of task=segment
        out: the run's folder; None for a new one
        images: that are in memory; None for those of the recipe
        start: a model in hand; None for the recipe's weights
        resume: whether the folder may contain the run
        host: device, workers, …
        cache: folder in which features are kept; None for nowhere
        command: what the user typed
    """

    recipe: Recipe
    searched: HeadSearch
    masks: MaskOptions
    out: str | Path | None
    images: Any
    start: Model | None
    resume: bool
    host: Host
    cache: str | Path | None
    command: str

    @property
    def data(self) -> Any:
        """The images in memory, or the name of those of the recipe."""
        return self.recipe.data.data if self.images is None else self.images


def segment_by(request: ProbeRequest, folder: RunFolder) -> Outcome:
    """Fit a segmenter, test it, and leave a run folder, or return the run that is there.

    Args:
        request: with the data: a folder, a list, or pairs in memory
        folder: of the run: free, or that of the finished run

    Raises:
        UserError: as `vitlab.probe`.
    """
    began = time.monotonic()
    recipe = request.recipe
    host = request.host
    how = request.masks
    reading = MaskReading(how.class_names, how.number, host.workers)
    splits = open_to_learn(request.data, "mask", recipe.data, reading)
    model = headless(recipe, request.start)
    check_spec(model.config.images)
    marks = fingerprint(splits.train.without_labels()), model_fingerprint(model)
    if folder.started:
        run = known_run(folder, *marks, recipe)
        if not needs_report(folder, host):
            return Outcome(run, None, is_new=False)
    leaks = find_leaks(recipe, host, splits, model.seen)
    splits = applied(splits, leaks)
    train = splits.train
    test = splits.test
    compute = begun(host, splits)
    if folder.started:
        segmenter = load_segmenter(folder.path)
        tested = measure(segmenter, test, compute)
        return Outcome(run, SegmenterTest(segmenter, test, tested, compute), is_new=False)
    found = _fitted(model, train, splits.validation, request.searched.by, how, compute, recipe.seed)
    known = masks_of(train).store.known
    head = found.head
    about = DenseClasses(known.classes, known.values, known.ignored, found.layers, how.scale)
    learned = training_hashes(Splits(train, test), labeled=True)
    model.seen = np.union1d(model.seen, learned)
    layer = PatchLayer(about, *map(torch.from_numpy, (head.weights, head.bias)))
    segmenter = Segmenter(model, layer)
    with named_if_slow(f"testing on {len(test):,} images"):
        tested = measure(segmenter, test, compute, host.effort.resamples)
    bad = [text for _, text in (*found.bad, *tested.bad)]
    lost = check_damage(bad, splits, host.max_bad)
    say(line := _line(found))
    figures = tested.figures | cost_of(model, layer, compute) | {
        "seconds": time.monotonic() - began, "damaged": len(bad), "train_images": len(train),
        "split": "test", "head": _about(found, request.searched, how), "tried": [*found.tried],
        "notes": [*splits.notes, line, *lost],
    } | leak_figures(leaks)  # fmt: skip
    run = keep_run(request, folder, marks, segmenter, figures)
    shown = SegmenterTest(segmenter, test, tested, compute)
    return Outcome(run, shown if host.draws_report else None)


def regress_by(request: ProbeRequest, folder: RunFolder) -> Outcome:
    """Fit a regressor, test it, and leave a run folder, or return the run that is there.

    Args:
        request: with the data: a table by its name, or in memory
        folder: of the run: free, or that of the finished run

    Raises:
        UserError: as `vitlab.probe`.
    """
    began = time.monotonic()
    recipe = request.recipe
    host = request.host
    searched = request.searched
    names = recipe.pretext.columns
    options = replace(recipe.data, label_column=tuple(names))
    splits = standardize(open_to_learn(request.data, "numbers", options))
    base = headless(recipe, request.start)
    marks = fingerprint(splits.whole or splits.train), model_fingerprint(base)
    if folder.started:
        run = known_run(folder, *marks, recipe)
        return Outcome(run, ObjectiveTest() if needs_report(folder, host) else None, is_new=False)
    leaks = find_leaks(recipe, host, splits, base.seen)
    splits = applied(splits, leaks)
    train, compute = splits.train, begun(host, splits)
    vectors, choices = choices_of(base, searched.layers, recipe.model.chosen().get("pool", ""))
    cache = cache_of(request.cache)
    learn = features_of(base, train, compute, vectors, cache=cache, title="training features")
    with named_if_slow("fitting the regressor"):
        found = find_ridge(train, learn, choices, searched.folds)
    model = ending_after(base, found.choice, {})
    model.seen = np.union1d(base.seen, training_hashes(splits, labeled=True))
    model.provenance |= {
        "data": recipe.data.data, "fingerprint": marks[0],
        "held_out": recipe.data.test_fraction if splits.whole is not None else 0.0,
    } | ({"moved": leaks["moved"]} if leaks and leaks["moved"] else {})  # fmt: skip
    assert isinstance(train.target, NumberTargets)
    scale = train.target.scale
    regressor = Regressor(model, Targets(names, True), **found.layer(), scale=scale)
    with named_if_slow(f"testing on {len(splits.test):,} images"):
        tested, damaged = measure_targets(regressor, splits.test, compute, host.effort.resamples)
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
    } | leak_figures(leaks)  # fmt: skip
    run = keep_run(request, folder, marks, regressor, figures)
    return Outcome(run, ObjectiveTest() if host.draws_report else None)


def begun(host: Host, splits: Splits) -> Compute:
    """Say what there is to say of the images; return where to compute."""
    say(*splits.notes)
    compute = Compute(devices.choose(host.device), workers=host.workers)
    devices.restart_peak(compute.where)
    return compute


def known_run(folder: RunFolder, mark: str, origin: str, recipe: Recipe) -> Run:
    """Return the finished run in a folder.

    Args:
        folder: of the run
        mark: fingerprint of the data
        origin: fingerprint of the model that it starts from
        recipe: with the paths of both as they are typed now

    Raises:
        RunError: it was started with others.
    """
    recipe = folder.paths.retype(folder.recipe, recipe)
    check_same(folder, recipe, folder.fingerprint == mark, origin)
    done = finished(folder, folder.result())
    assert done is not None
    return done


def keep_run(
    request: ProbeRequest,
    folder: RunFolder,
    marks: tuple[str, str],
    fitted: Segmenter | Regressor,
    figures: dict[str, Any],
) -> Run:
    """Write the run of a head that was fitted, whose report is still to come.

    Args:
        request: of the head
        folder: of the run, free
        marks: fingerprints of the data and of the model that was started from
        fitted: the head and its model
        figures: of the run
    """
    model = fitted.model
    recipe = request.recipe
    recipe = replace(recipe, model=part_of(model.config, recipe.model.model))
    with folder.locked():
        folder.may_be_used(False)  # another process may have been at work in it
        folder.start(recipe, request.host, request.command, *marks, head=figures["head"])
        folder.continue_from(b"", 0)
        save(model, folder.model)
        save_head(fitted, folder.path)
        figures |= folder.final_places(request.host)
        folder.journal.write({"kind": "result"} | figures)
        folder.journal.sync()
    return Run(folder.path, RunRecord(figures), model.cpu())


def _line(found: FoundPatchHead) -> str:
    """Return what was chosen, in words."""
    head, several = found.head, "s" * (len(found.layers) > 1)
    return (
        f"head: {NAMES[head.by]} (l2 {head.l2:g}) on the patch tokens of block{several} "
        f"{', '.join(map(str, found.layers))}, the best of {len(found.tried)} that were tried: "
        f"mIoU {percent(found.miou)} on pixels of {found.held:,} images that were held out"
    )


def _about(found: FoundPatchHead, searched: HeadSearch, how: MaskOptions) -> dict[str, Any]:
    """Return what was chosen, for `run.toml` and the run's figures."""
    return {
        "task": "segment", "by": found.head.by, "layers": [*found.layers], "l2": found.head.l2,
        "width": found.head.weights.shape[1], "pixels": found.pixels, "miou": found.miou,
        "scale": how.scale, "tried": len(found.tried),
        "asked": searched.as_table() | how.as_table(),
    }  # fmt: skip


def cost_of(model: Model, layer: PatchLayer | Regressor, compute: Compute) -> dict[str, Any]:
    """Return what a run cost, by the keys of the command's JSON."""
    figures = cost_figures(model)
    figures["params"] += len(layer.bias) * (layer.weight.shape[1] + 1)
    return {
        **figures,
        "peak_memory": devices.peak_memory(compute.where),
        "device": devices.described(compute.where),
    }


def headed(recipe: Recipe, start: Model | None) -> Model:
    """Return the model of the weights, or the one in hand, as it is."""
    base = starting_model(recipe, start)
    assert base is not None
    return base


def headless(recipe: Recipe, start: Model | None) -> Model:
    """Return the model of the weights with the chosen fields, without its classifier."""
    base = headed(recipe, start)
    config, _ = config_from(base.config, recipe.model, base.config.labels, "head")
    made = made_from(base, config, recipe.start)
    model = fitted(made.config, whole_state(made), 0).eval()
    model.provenance = {
        key: each
        for key, each in base.provenance.items()
        if key not in ("temperature", "thresholds")
    } | {"task": recipe.pretext.task}
    model.source = base.source
    return model


def _fitted(
    model: Model,
    train: Images,
    chosen: Images | None,
    by: str,
    how: MaskOptions,
    compute: Compute,
    seed: int,
) -> FoundPatchHead:
    """Draw pixels and search the head: by the validation images, else by some of the others.

    These are then learned from too.
    """
    learn = train
    held = chosen
    if held is None:
        rows = hold_out_some(train, CHOOSE, "choose")
        learn = train.without(rows)
        held = train.take(rows)
    bad: list[Bad] = []
    sets = layer_sets(model, how.concat)
    seen, kept = (
        collected(model, each, sets[-1], how.scale, compute, seed, bad, title)
        for each, title in ((learn, "training features"), (held, "features to choose by"))
    )
    with named_if_slow("fitting the classifier of patches"):
        found = find_patch_head(seen, kept, sets, by, compute.where, refit=chosen is None)
    return replace(found, bad=bad, held=len(held))


def check_damage(bad: Sequence[str], splits: Splits, limit: float) -> list[str]:
    """Name images that were skipped, and refuse too many of them; return the lines."""
    images = len(splits.train) + len(splits.test)
    lines = [f"skipped: {text}" for text in bad]
    say(*lines)
    if len(bad) > bearable(limit, images):
        raise DataError(
            f"{len(bad)} of {images:,} images, or their masks, cannot be used, more than --max-bad "
            f"{limit:g} allows: repair them, or pass --max-bad {2 * len(bad)}"
        )
    return lines
