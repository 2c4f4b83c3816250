"""Forecast of a run with a budget: what fits, from a few small steps, before anything is done."""

import time
from dataclasses import replace

import numpy as np
import torch

from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.cache import cached
from vitlab.data.loading.loader import Upload, choose_workers
from vitlab.device import forked_random, synchronize
from vitlab.distributed.shares import counted
from vitlab.distributed.world import World
from vitlab.machine.cores import cores
from vitlab.models.encoder.recomputing import recomputed
from vitlab.models.model import Model
from vitlab.progress import say
from vitlab.recipes.recipe import Decisions, Recipe
from vitlab.training.budget import USEFUL, Pacer, long_enough, refusal, seconds_per_image
from vitlab.training.first_state import MOST as FITTED
from vitlab.training.first_state import first_state, has_head_to_fit
from vitlab.training.leak_scope import images_searched
from vitlab.training.observer import MOST as MEASURED
from vitlab.training.plan import EVALUATED, batches_of, plan_for
from vitlab.training.resolve import Task
from vitlab.training.step import Trainer
from vitlab.units import counted as number_of
from vitlab.units import duration, epochs

SPAN = 3.0  # seconds that steps are timed for
AT_ONCE = 64  # images per pass, if their number is to be chosen
PEEK = 2  # images that tell whether all are small
LEAST, FIT = 0.5, 2e-7  # seconds of a head's fit; more for each image, feature and class


def foresee(task: Task, pacer: Pacer, world: World, device: torch.device) -> None:
    """Say what a budget has room for, or refuse it: nothing is begun yet.

    Args:
        task: as it was prepared
        pacer: gets the seconds of a step, of an evaluation and of what comes before the first step
        world: this process alone
        device: where to compute

    Raises:
        OptionError: the budget holds neither a useful run nor the head that is fitted first.
        DivergedError: the loss or gradient of the untrained model is not finite.
    """
    head = reckon(task, pacer, world, device)
    if pacer.step:
        held_out = _count_held_out(task)
        _say_plan(pacer, task.recipe, len(task.splits.train), held_out, head)


def reckon(task: Task, pacer: Pacer, world: World, device: torch.device) -> float:
    """Work out what a run takes from steps of few images; a pacer gets the seconds.

    Tests and features are reckoned by a forward pass in fp32, as they are computed, the fit of a
    head by its size, the search for near-duplicates by the time that images take to load.

    Args:
        task: as it was prepared
        pacer: gets nothing where images cannot be read: the run says which
        world: the processes, which time the same steps
        device: where to compute

    Returns:
        The seconds that a run of the head alone takes once it is fitted; 0 without one.

    Raises:
        DivergedError: the loss or gradient of the untrained model is not finite.
    """
    recipe = task.recipe
    splits = task.splits
    config = task.config
    say("timing a few small steps …")
    state = first_state(task, device, world)
    objective = state.task or task.objective
    trainer = Trainer(state.model, recipe, world, False, objective, task.hooks.transform)
    trainer.micro_batch = trainer.micro_batch or min(recipe.batch, AT_ONCE)
    source = splits.train
    upload = Upload(device)

    def batch_of(size: int) -> Batch:
        few = replace(recipe, batch=size)
        return counted(upload(batches_of(few, source, config, world, task.order)[0]), world)

    with forked_random(device), recomputed(trainer.engine.plain, task.host.checkpoint_activations):
        load, learn, timed = seconds_per_image(trainer, state, batch_of, SPAN)
    if not timed:
        return 0.0
    forward = _seconds_of_features(state.model, source, timed, device) or EVALUATED * learn
    load /= max(1, min(choose_workers(source, task.host.workers), cores()))
    small = cached(source.take(np.arange(PEEK)), config.channels).in_memory
    again = 0.0 if small else load  # small images are decoded once
    unlabeled = recipe.pretext.unlabeled
    measured = _count_held_out(task)
    # without labels the loss is measured beside the features
    each = again + forward + (EVALUATED * learn + again) * unlabeled
    pacer.step = recipe.batch * (again + learn)
    pacer.evaluation = measured * each
    pacer.tested = 1.0 if unlabeled else len(splits.test) / measured
    images = sum(map(len, splits.parts.values()))
    searched = images_searched(recipe, task.host, splits)
    pacer.ahead = (load - again) * images + load * searched
    if not has_head_to_fit(task):
        return 0.0
    features = min(len(source), max(FITTED, config.classes))
    pacer.ahead += LEAST + features * (again + forward + FIT * config.features * config.classes)
    alone = pacer.last
    pacer.tested *= 2  # the head as it was fitted is tested, too
    return alone


def _count_held_out(task: Task) -> int:
    """Return how many images an evaluation has."""
    splits = task.splits
    how = task.recipe.pretext
    count = len((how.labeled and splits.validation) or splits.test)
    return min(count, MEASURED) if how.unlabeled else count


def _seconds_of_features(model: Model, source: Images, count: int, device: torch.device) -> float:
    """Return how long the forward pass of a loaded image takes in fp32; 0 if it has no features."""
    if not model.config.features:
        return 0.0
    few = source.take(np.arange(count))
    batch = EvaluationBatches(few, model.config, count)[0].to(device)
    start = time.monotonic()
    with torch.inference_mode():
        model.eval().features(normalize(batch.images, model.config))
    synchronize(device)
    return (time.monotonic() - start) / max(1, len(batch))


def _say_plan(pacer: Pacer, recipe: Recipe, images: int, held_out: int, head: float) -> None:
    """Say what there is time for.

    Args:
        pacer: knows what everything takes
        recipe: of the run
        images: to learn from
        held_out: images of an evaluation
        head: seconds that a run of the head alone takes once it is fitted; 0 without one

    Raises:
        OptionError: there is time for nothing useful.
    """
    decisions = Decisions()
    limit = duration(pacer.budget)
    for _ in range(2):  # a shorter run may be evaluated more often
        every = plan_for(recipe, decisions, images, 0, held_out).evaluate_every
        steps = pacer.fits(every)
        decisions = Decisions(plan=((0, max(1, steps)),))
    first = f"a head is fitted first, in about {duration(pacer.ahead)}"
    if steps >= USEFUL:
        long = f"about {number_of(steps, 'step')} ({epochs(steps * recipe.batch / images)})"
        say(f"plan: {f'{first}; then ' if head else ''}{long} fit into {limit}")
        return
    if not head or pacer.left < head:
        raise refusal(pacer, every, recipe, head)
    pacer.head_alone = True
    longer = long_enough(pacer, pacer.takes(USEFUL, every))
    say(f"plan: {first}, and is the result: training further takes a budget of {longer}")
