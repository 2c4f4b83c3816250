"""`vitlab.probe`: a linear probe that stays, a classifier on frozen features."""

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from vitlab.data.opened_data import OpenedData
from vitlab.data.settings import Data
from vitlab.data.sources.request import Given
from vitlab.device import restart_peak
from vitlab.distributed.launch import joined
from vitlab.distributed.world import ALONE
from vitlab.errors import OptionError, RunError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.feature_cache import cache_of, features_of
from vitlab.evaluation.features import ImageFeatures
from vitlab.evaluation.infer import predict
from vitlab.evaluation.probes.feature_options import Cuts
from vitlab.evaluation.probes.few_shot import classes_of
from vitlab.evaluation.probes.searching import (
    KINDS,
    FoundHead,
    Pool,
    choices_of,
    fit_head,
    with_head,
)
from vitlab.evaluation.unlike import fit_unlike_behind, learned_unlike
from vitlab.keywords import ProbeKeywords
from vitlab.models.model import Model
from vitlab.models.unlike import layer_of
from vitlab.options import options_of
from vitlab.progress import say
from vitlab.public_calls import PLACE, public
from vitlab.recipes.head_search import INSTEAD, HeadSearch, MaskOptions, probe_recipe
from vitlab.recipes.model_part import part_of
from vitlab.recipes.recipe import PROBE, Host, Recipe
from vitlab.run_reports.report_run import report_run
from vitlab.runs.naming import run_name
from vitlab.runs.run_folder import RunFolder
from vitlab.runs.same_data import is_same_data
from vitlab.training.ending import needs_report, reported, saved_and_tested
from vitlab.training.first_state import first_state
from vitlab.training.from_weights import made_from
from vitlab.training.leaks import applied, find_leaks
from vitlab.training.observer import Observer
from vitlab.training.outcome import ClassifierTest, Outcome, Run
from vitlab.training.resolve import Task, prepare, with_fingerprint
from vitlab.training.resume import check_same, find_again, placed
from vitlab.training.run_data import learning_from, open_run_splits
from vitlab.training.step import Trainer
from vitlab.training.stop import Stop
from vitlab.transfer.head_runs import (
    NAMES,
    ProbeRequest,
    headed,
    known_run,
    regress_by,
    segment_by,
)
from vitlab.units import percent

POOLED = {
    "token": "the class token",
    "mean": "the mean of the patches",
    "both": "the class token and the mean",
}
USUAL = HeadSearch().as_dict() | MaskOptions().as_dict() | Data().as_dict()
MASKS, PARTS = {*options_of(MaskOptions)}, {"fold", "dev_share", "train_images", "drop_duplicates"}
UNUSED = {  # by task: options, or values of them, that nothing of it heeds
    "classify": MASKS,
    "segment": PARTS | {"layers", "folds", "by=means", "precision=bf16"},
    "regress": PARTS | MASKS | {"by=means", "by=logistic", "precision=bf16"},
}


@public(out=PLACE)
def probe(
    data: Given,
    weights: str | Path | Model | None = None,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    host: Host | None = None,
    cache: str | Path | None = "auto",
    command: str = "",
    quiet: bool = False,
    **fields: Unpack[ProbeKeywords],
) -> Run:
    """Fit a linear classifier to a model's frozen features, test it, and leave a run folder.

    Features are computed once and kept. Which layer the model ends after (one of the last six),
    class token, mean of the patches or both, which kind of head (logistic regression, ridge, class
    means) and which penalty are chosen by cross-validation inside the training images; the best is
    fitted to all of them, folded into one `Linear` for the features as they are, and calibrated on
    the logits of the images that each fit had not learned from. Source: SimCLR (Chen et al., 2020,
    B.8), whose linear evaluation it is, with standardized features.

    Args:
        data: as for training, also labeled images in memory; one class per image. With
            task="segment", images with masks: a folder or a list as docs/segment.md has them, or
            (image, mask) pairs
        weights: anything that `vitlab.load` takes, or a model in hand; None for those that
            `vitlab finetune` starts from
        out: the run's folder; None for a new one in `runs/`
        resume: finish the run in that folder, which was interrupted; start it if there is none
        host: device, workers, …; nothing of it changes what is fitted
        cache: folder in which features are kept; auto: the user's cache; None for nowhere
        command: what the user typed, for the report
        quiet: print nothing but warnings
        fields: `by` (auto, logistic, ridge, means), `layers` (6), `folds` (5); `precision` of the
            features (fp32; bf16; auto: bf16 for many images, where the device multiplies it faster
            and they agree); any option of the data or of the model: `image_size=112`.
            `task="segment"` learns a class of each pixel, with `class_names`, `ignore`, `concat`
            and `scale`; `targets="age,height"` learns numbers, columns of a table

    Returns:
        The run, whose model is an ordinary one. Its metrics have those of any run, `head` (what was
        chosen) and `tried` (each with its accuracy in cross-validation). With task="segment" they
        have `miou`, `pixel_accuracy` and `boundary_iou`, and the model is the one that the
        segmenter sees with.

    Raises:
        UserError: as `vitlab.train`; several labels per image, options of training.
    """
    given: dict[str, Any] = {**fields}
    searched = HeadSearch(**{key: given.pop(key) for key in options_of(HeadSearch) & given.keys()})
    masks = MaskOptions(**{key: given.pop(key) for key in options_of(MaskOptions) & given.keys()})
    start = weights if isinstance(weights, Model) else None
    named = "" if start is not None else None if weights is None else str(weights)
    recipe, images = learning_from(probe_recipe(named, **given), data)
    request = ProbeRequest(
        recipe=recipe,
        searched=searched,
        masks=masks,
        out=out,
        images=images,
        start=start,
        resume=resume,
        host=host or Host(),
        cache=cache,
        command=command,
    )
    return probe_by(request)


def probe_by(request: ProbeRequest) -> Run:
    """Fit a head, test it and write the report of its run, as `probe` does."""
    return report_run(fit_and_test(request))


def fit_and_test(request: ProbeRequest) -> Outcome:
    """Fit a head, test it, and leave a run folder, whose report is still to come.

    Raises:
        UserError: as `probe`.
    """
    recipe = request.recipe
    start = request.start
    host = request.host
    if recipe.precision == "bf16-pure":
        raise OptionError(f"precision=bf16-pure {INSTEAD}, or precision=bf16")
    kind, asked = recipe.pretext.task, request.searched.as_dict() | request.masks.as_dict()
    _check_heeded(kind, asked | recipe.data.as_dict() | {"precision": recipe.precision})
    began = time.monotonic()
    with Stop() as stop, joined(host.device, host.timeout) as (world, device), ExitStack() as stack:
        if world.size > 1:
            raise OptionError("a probe runs in one process: start it without torchrun")
        name = run_name(recipe, start, PROBE)
        folder = RunFolder(placed(request.out, name, resume=request.resume, world=world))
        _make_way(folder, recipe, start, asked, request.resume)
        with stop.at_once():
            if kind == "segment":
                return segment_by(request, folder)
            if kind == "regress":
                return regress_by(request, folder)
            if folder.started:
                return _resume_probe(request, folder, device)
            task = prepare(recipe, host, folder, False, world, start, data=request.images)
            # decided by the features, which may agree with those in fp32 or not
            task = replace(task, recipe=replace(task.recipe, precision=recipe.precision))
            task = _opened(task)
            say(*task.splits.notes)
            restart_peak(device)
            pool = recipe.model.chosen().get("pool", "")
            learn, found, model = _fitted(task, request.searched, pool, device, request.cache)
            task, observer = _ended(task, model, found, learn, device)
        observer.state.tally.seconds = time.monotonic() - began
        stack.enter_context(folder.locked())
        folder.may_be_used(False)  # another process may have been at work in it
        head = _about(found, request.searched)
        _begin(task, request.command, head, found)
        stop.message = f"interrupted: pass --resume to test the model in {folder.model}"
        model = observer.state.model.eval()
        done = saved_and_tested(observer, model, stop)
        own = {"head": head, "tried": [*found.tried]}
        return reported(observer, model, done, own)


def _resume_probe(request: ProbeRequest, folder: RunFolder, device: torch.device) -> Outcome:
    """Return a probe that was begun, if weights and images are the same, wherever they lie now."""
    start = request.start
    images = request.images
    at_once = request.host.effort.read_first
    recipe, _, origin = find_again(
        folder,
        request.recipe,
        "start",
        lambda each: with_fingerprint(headed(each, start)),
        lambda mark: mark == folder.base,
        start is None,
    )
    recipe, splits, contents = find_again(
        folder,
        recipe,
        "data",
        lambda each: open_run_splits(each, images, OpenedData(), None, at_once),
        lambda contents: is_same_data(folder, contents),
        images is None,
    )
    run = known_run(folder, contents.read(), origin, recipe)
    if not needs_report(folder, request.host):
        return Outcome(run, None, is_new=False)
    splits = applied(splits, folder.duplicates)
    compute = Compute(device, "fp32", "plain", request.host.workers)
    test = ClassifierTest(splits, predict(run.model, splits.test, compute), compute)
    return Outcome(run, test, is_new=False)


def _check_heeded(task: str, given: dict[str, Any]) -> None:
    """Refuse options that a task would not heed.

    Raises:
        OptionError: the first of them that is not as usual.
    """
    for name, value in given.items():
        if value != USUAL.get(name) and UNUSED[task] & {name, f"{name}={value}"}:
            raise OptionError(f"{name}={value} does not apply with task={task}: leave it out")


def _make_way(
    folder: RunFolder, recipe: Recipe, start: Model | None, asked: dict[str, Any], resume: bool
) -> None:
    """Refuse another run in the way, or other options; remove a run that was interrupted.

    Raises:
        RunError: there is such a run; the message says what differs.
    """
    if not folder.may_be_used(resume):
        return
    before = folder.recipe
    if before.recipe != PROBE:
        raise RunError(f"{folder.path} contains a run of vitlab train: choose another --out")
    model = replace(before.model, **recipe.model.chosen())  # the weights decide on the rest of it
    if start is not None:  # whose fingerprint is compared
        recipe = replace(recipe, start=before.start)
    recipe = folder.paths.as_recorded(replace(recipe, model=model))
    check_same(folder, recipe, same_data=True, origin=folder.base)
    was = USUAL | folder.tables.get("head", {}).get("asked", asked)  # older runs did not keep it
    for key, now in asked.items():
        if was[key] != now:
            raise RunError(
                f"{folder.path} was started with {key}={was[key]}, not {now}: leave the option "
                "out, or choose another --out"
            )
    if folder.result():
        return
    with folder.locked():
        folder.withdraw()


def _opened(task: Task) -> Task:
    """Return the task without images that weights have learned from, its labels checked.

    Raises:
        DataError: several labels per image.
    """
    classes_of(task.splits.train, task.recipe.data.data)
    leaks = find_leaks(task.recipe, task.host, task.splits, task.seen)
    return replace(task, splits=applied(task.splits, leaks), leaks=leaks)


def _fitted(
    task: Task, searched: HeadSearch, pool: Pool, device: torch.device, cache: str | Path | None
) -> tuple[ImageFeatures, FoundHead, Model]:
    """Compute features and search the head; return both, and the model with it."""
    assert task.base is not None
    model = made_from(task.base, task.config, task.recipe.start)
    model.provenance, model.source, model.seen = task.base.provenance, task.base.source, task.seen
    cuts, choices = choices_of(model, searched.layers, pool)
    layers = cuts.layers if isinstance(cuts, Cuts) else ()
    vectors = Cuts(layers=layers, inner=layer_of(model.last_layer))
    assert task.recipe.precision != "bf16-pure"  # refused before
    compute = Compute(device, task.recipe.precision, workers=task.host.workers)
    train = task.splits.train
    learn = features_of(
        model, train, compute, vectors, cache=cache_of(cache), title="training features"
    )
    kinds = KINDS if searched.by == "auto" else (searched.by,)
    found = fit_head(train, learn, choices, kinds, searched.folds, device)
    made = with_head(model, found)
    if made.last_layer >= vectors.inner:
        layer = vectors.inner
        made.unlike = fit_unlike_behind(train, learn, found.folds, model.config, layer)
    else:  # it ends before that layer
        folds = task.host.effort.folds
        made.unlike = learned_unlike(made, train, None, compute, ALONE, folds)
    return learn, found, made


def _ended(
    task: Task, model: Model, found: FoundHead, learn: ImageFeatures, device: torch.device
) -> tuple[Task, Observer]:
    """Return the task as it came out, and what tests its model.

    Raises:
        DataError: too many images are damaged.
    """
    line = _line(task, found)
    task = replace(
        task,
        recipe=replace(task.recipe, model=part_of(model.config, task.recipe.model.model)),
        config=model.config,
        fitted=model,
        splits=replace(task.splits, notes=[*task.splits.notes, line]),
    )
    state = first_state(task, device, ALONE)
    about = {"data": task.recipe.data.data, "images": len(learn.indices), "by": "cross-validation"}
    state.model.provenance |= {"temperature": found.temperature, "calibration": about}
    state.model.unlike = model.unlike
    del state.model.provenance["epochs"]
    state.tally.seen = len(learn.indices)
    observer = Observer(task, state, Trainer(state.model, task.recipe))
    observer.note_damage(list(enumerate(learn.bad)))
    say(line)
    return task, observer


def _line(task: Task, found: FoundHead) -> str:
    """Return what was chosen, in words."""
    choice, head = found.choice, found.head
    last = task.base.last_layer if task.base is not None else choice.layer
    what = "what the classifier sees"
    if choice.pool:
        what = f"{POOLED[choice.pool]} after block {choice.layer} of {last}"
    penalty = f" (l2 {head.l2:g})" if head.l2 else ""
    how = found.tried[-1]["how"]
    return (
        f"head: {NAMES[head.by]}{penalty} on {what}, chosen among {len(found.tried)}: "
        f"{percent(found.accuracy)} of the training images in cross-validation ({how})"
    )


def _about(found: FoundHead, searched: HeadSearch) -> dict[str, Any]:
    """Return what was chosen, for `run.toml` and the run's figures."""
    choice, head = found.choice, found.head
    return {
        "by": head.by,
        "layer": choice.layer,
        "pool": choice.pool or "features",
        "width": choice.width,
        "l2": head.l2,
        "folds": searched.folds,
        "cross_validated": found.accuracy,
        "temperature": found.temperature,
        "tried": len(found.tried),
        "asked": searched.as_table(),
    }


def _begin(task: Task, command: str, head: dict[str, Any], found: FoundHead) -> None:
    """Write `run.toml`, and what was tried into the journal."""
    folder = task.folder
    folder.keep_duplicates(task.leaks)
    folder.start(
        task.recipe, task.host, command, task.contents.read(), task.base_fingerprint, head=head
    )
    folder.continue_from(b"", 0)
    for each in found.tried:
        folder.journal.write({"kind": "tried"} | each)
