"""Measuring how long a step and an evaluation take, in a small share of the budget.

On a slow machine a piece of a batch is measured in place of the whole, and some of the held-out
images in place of all.
"""

import time
from collections.abc import Iterator

import numpy as np

from vitlab.data.loading.batches import Batch
from vitlab.data.sources.source import Subset
from vitlab.device import synchronize
from vitlab.distributed.shares import counted
from vitlab.errors import DivergedError, OptionError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.cost import cost
from vitlab.progress import say
from vitlab.recipes.model_part import model_part
from vitlab.training.budget import LONGEST, MARGIN, SHARE, USEFUL, Pace, too_short
from vitlab.training.plan import EVALUATED
from vitlab.training.saving.state import State
from vitlab.training.session import Session
from vitlab.training.step.halfway import HalfwayError, given_up_when
from vitlab.training.step.trainer import Trainer
from vitlab.training.stop import Stop
from vitlab.units import duration

LEAST = 1.0  # seconds to measure for, however short the budget
FIRST, GROWTH = 2, 4  # images of the first piece, and how much larger the next one is
BUSIEST = 10.0
SMALLER = ("ViT-B/16", "ViT-S/16", "ViT-B/32", "ViT-Ti/16", "ViT-S/32", "ViT-Ti/32")


def measure_pace(session: Session, batches: Iterator[Batch], batch: Batch) -> Pace:
    """Return how long a step and an evaluation take.

    Args:
        session: its weights are changed
        batches: as many as are asked for
        batch: the first of them

    Raises:
        OptionError: the budget is over before a step could be measured.
    """
    pacer, trainer, state = session.pacer, session.trainer, session.state
    span = min(LONGEST, max(SHARE * pacer.budget, LEAST))
    say(f"measuring the pace, for up to about {duration(2 * span)} …")
    wall, busy = time.monotonic(), time.thread_time()
    try:
        with given_up_when(lambda: pacer.left < 0, trainer.engine):
            step = seconds_per_step(trainer, state, batches, batch, span, session.stop)
    except HalfwayError:
        raise OptionError(
            f"--budget {session.recipe.budget} is over before the speed of "
            f"{state.model.config.name} could be measured: choose a larger one, or a "
            "smaller --model"
        ) from None
    waited = (time.monotonic() - wall) / max(time.thread_time() - busy, 1e-3)
    pacer.busy = min(max(1.0, waited), BUSIEST)
    pacer.evaluated(seconds_per_evaluation(session, span, step))
    return Pace(step, pacer.evaluation, session.plan.evaluate_every, pacer.last)


def seconds_per_step(
    trainer: Trainer,
    state: State,
    batches: Iterator[Batch],
    batch: Batch,
    span: float,
    stop: Stop,
) -> float:
    """Return how long one step takes, loading included.

    Pieces of the first batch grow as long as the next one fits into the time; if it is the whole
    batch, whole steps follow.

    Args:
        trainer: takes the steps
        state: changed by them
        batches: as many as are asked for
        batch: the first of them
        span: seconds to measure for
        stop: ends the measurement

    Raises:
        Interrupted: a stop was asked for.
    """
    begin, size, whole = time.monotonic(), FIRST, len(batch)
    rehearse_step(trainer, state, counted(next(batch.pieces(size)), trainer.world))  # warms up
    while True:
        piece = counted(next(batch.pieces(size)), trainer.world)
        taken = _timed(trainer, state, piece)
        left = span - (time.monotonic() - begin)
        if len(piece) == whole or taken * GROWTH > left:
            break
        size *= GROWTH
    start, count = time.monotonic(), 0
    following = next(batches, batch)
    stop.check()
    loading = time.monotonic() - start
    if len(piece) < whole:
        return taken * whole / max(1, len(piece)) + loading
    start = time.monotonic()
    while not count or time.monotonic() - begin < span:
        _timed(trainer, state, following)
        following, count = next(batches, batch), count + 1
        stop.check()
        if time.monotonic() - begin + taken > span:
            break
    return (time.monotonic() - start) / count


def rehearse_step(trainer: Trainer, state: State, batch: Batch) -> None:
    """Take a step that moves no weight, and wait for it.

    Raises:
        DivergedError: the loss or gradient of the untrained model is not finite.
    """
    if batch.total:
        fault = trainer.step(state, batch, lr=0.0, seed=0).fault
        if fault:
            raise DivergedError(
                f"the {fault} is not finite before the first step: check the images and the model"
            )


def _timed(trainer: Trainer, state: State, batch: Batch) -> float:
    """Take a step that moves no weight, and return how long it took."""
    start, device = time.monotonic(), trainer.device
    rehearse_step(trainer, state, batch)
    synchronize(device)
    return time.monotonic() - start


def seconds_per_evaluation(session: Session, span: float, step: float) -> float:
    """Return how long an evaluation takes, from a part of the images if there are many.

    Args:
        session: has the held-out images
        span: seconds to measure for
        step: seconds of a training step
    """
    observer, images = session.observer, len(session.observer.held_out)
    likely = EVALUATED * step / session.recipe.batch * images
    start = time.monotonic()
    if likely <= span:
        observer.measure()
        return time.monotonic() - start
    some = np.linspace(0, images - 1, num=max(FIRST, int(images * span / likely)), dtype=np.int64)
    observer.predict(Subset(observer.held_out, some))
    return (time.monotonic() - start) * images / len(some)


def check_useful(session: Session, pace: Pace) -> None:
    """Refuse a budget that holds no useful run.

    Raises:
        OptionError: it does not, with what would work.
    """
    pacer, batch = session.pacer, session.recipe.batch
    if pace.fits(pacer.left) >= USEFUL:
        return
    share = (pacer.left - MARGIN * pace.last) / (MARGIN**2 * USEFUL * pace.step)
    start = session.recipe.start
    model = "" if start.weights else smaller_model(session.state.model.config, share)
    raise too_short(pace, pacer, session.recipe.budget, batch, model)


def smaller_model(config: ModelConfig, share: float) -> str:
    """Return the largest usual ViT that costs at most a share of a model; empty if there is none.

    Args:
        config: of the model, whose images it gets
        share: of its multiply-adds
    """
    if not isinstance(config, ViTConfig):
        return ""
    limit, found = share * cost(config).macs, {}
    for name in SMALLER:
        try:
            other = model_part(name).config(
                image_size=config.image_size,
                channels=config.channels,
                classes=config.classes,
                labels=config.labels,
            )
        except OptionError:  # its patches do not divide the images
            continue
        if cost(other).macs <= limit:
            found[cost(other).macs] = name
    return found[max(found)] if found else ""
