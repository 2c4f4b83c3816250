"""Trial steps before the first one: how many images fit into memory, compilation, the pace.

They have a learning rate of 0 and are undone: the run that follows is, to the last bit, that of a
recipe with the numbers decided here.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

import torch

from vitlab.data.loading.batch import Batch
from vitlab.data.loading.loader import choose_workers
from vitlab.device import free_memory, peak_memory, restart_peak
from vitlab.distributed.shares import counted, largest_share
from vitlab.distributed.world import ALONE
from vitlab.errors import DeviceError, UserError
from vitlab.measure.allocated import Allocated
from vitlab.models.cost import cost
from vitlab.models.packed import Packed
from vitlab.progress import say
from vitlab.training.budget import USEFUL, refusal, seconds_per_step
from vitlab.training.plan import batches_of
from vitlab.training.session import Session
from vitlab.training.state import Checkpoint, RunState
from vitlab.training.step import Trainer
from vitlab.units import counted as number_of
from vitlab.units import duration, epochs, storage

MANY = 10**9  # steps, more than are ever measured
OF_BUDGET = 0.04  # that measuring may take
LEAST, LONGEST = 1.0, 3.0  # seconds that measuring takes
SHARE = 0.9  # of a device's memory that a batch may take; evaluation and fragments need some
SAMPLE = 16  # images of the largest pass that is measured
PER_MAC, PER_WEIGHT = 4, 64  # bytes: more than a step of labeled images takes
KEPT, SLACK = 1.7, 1.3  # times as much memory as tensors: on a CPU, which keeps freed memory; else
PLENTY = 2**31  # free bytes from which on a brief effort measures nothing
BESIDE = 250e6  # bytes that a CPU's operations take for themselves


def try_steps(session: Session) -> None:
    """Decide what the recipe leaves open, and compile, with steps that are undone.

    Raises:
        DeviceError: not even one image fits into memory.
        DivergedError: the loss or gradient of the untrained model is not finite.
        OptionError: the budget holds no useful run.
        Interrupted: a stop was asked for.
    """
    state, trainer, stop = session.state, session.trainer, session.stop
    size = session.plan.recipe.micro_batch == "auto"
    timed = session.pacer.budget > 0 and not session.decisions.plan
    if size:
        with stop.at_once() if session.world.size == 1 else nullcontext():
            chosen = choose_micro_batch(session)
        session.decide(replace(session.decisions, micro_batch=chosen))
    span = min(LONGEST, max(OF_BUDGET * session.pacer.budget, LEAST))
    quick = timed and 2 * session.pacer.step <= span
    if quick or trainer.engine.compiled:
        last = state.step + (MANY if quick else 1)
        with stop.at_once(), undone(state), closing(session.batches(last)) as batches:
            batch = next(batches, None)
            if batch is None:  # a stop was asked for meanwhile
                raise stop.interrupted()
            if trainer.engine.compiled:
                compile_for(trainer, state, batch)
            if quick:
                measure_pace(session, batches, batch, span)
    if timed:
        fit_into_budget(session)
    if size or timed:
        session.folder.decide(session.decisions)


@contextmanager
def undone(state: RunState) -> Iterator[None]:
    """Restore a state at the end of the block, also after an error."""
    now = state.checkpoint()
    tensors = {name: t.detach().to("cpu", copy=True) for name, t in now.tensors.items()}
    before = Checkpoint(tensors, copy.deepcopy(now.state))
    try:
        yield
    finally:
        state.restore(before)


def compile_for(trainer: Trainer, state: RunState, batch: Batch) -> None:
    """Compile forward and backward pass for the passes of a batch; if that fails, do without."""
    start = time.monotonic()
    say("compiling the training step …")
    try:
        trainer.try_step(state, batch)
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a compiler raises errors of any kind
        reason = " ".join(str(error).split()[:30]) or type(error).__name__
        say(f"torch.compile failed, continuing without it: {reason}")
        trainer.engine.give_up_compiling()
        return
    say(f"compiled in {time.monotonic() - start:.0f} s")


def measure_pace(session: Session, batches: Iterator[Batch], batch: Batch, span: float) -> None:
    """Measure how long whole steps take, and an evaluation that takes no longer.

    Args:
        session: its weights are changed
        batches: as many as are asked for
        batch: the first of them
        span: seconds to measure for
    """
    pacer, trainer, state = session.pacer, session.trainer, session.state
    say(f"measuring the pace, for up to about {duration(2 * span)} …")
    pacer.step = seconds_per_step(trainer, state, batches, batch, span, session.stop)
    if pacer.evaluation <= span:
        start = time.monotonic()
        session.observer.measure()
        pacer.evaluated(time.monotonic() - start)


def fit_into_budget(session: Session) -> None:
    """Decide on the number of steps that the rest of the budget has room for.

    Raises:
        OptionError: it holds no useful run, and there is no head that was fitted first.
    """
    pacer = session.pacer
    if (fit := pacer.fits(session.plan.evaluate_every)) < USEFUL:
        if not session.has_start:
            raise refusal(pacer, session.plan.evaluate_every, session.recipe)
        session.world.say(f"{number_of(fit, 'step')} would fit, fewer than {USEFUL}: none is taken")
        session.leave_head()
        return
    for _ in range(2):  # a shorter run may be evaluated more often
        total = max(1, pacer.fits(session.plan.evaluate_every))
        session.decide(replace(session.decisions, plan=((0, total),)))
    long = epochs(session.plan.recipe.epochs)
    say(f"{number_of(total, 'step')} ({long}) fit into {duration(pacer.budget)}")


# Memory


def choose_micro_batch(session: Session) -> int:
    """Return how many images a process passes at once: its share of a batch, if that fits.

    Else a half, a quarter and so on of it. All processes choose the same, the smallest.

    Raises:
        DeviceError: not even one image fits, or two that are mixed.
    """
    trainer = session.trainer
    augmented = session.recipe.augment
    world = session.world
    effort = session.task.host.effort
    whole, on_cpu = largest_share(session.recipe.batch, world.size), trainer.device.type == "cpu"
    free = free_memory(trainer.device) // (world.local_size if on_cpu else 1)
    price, room = cost(trainer.model.config), SHARE * free
    most = whole * PER_MAC * price.macs + PER_WEIGHT * price.params
    asked = effort.memory or not session.recipe.pretext.unlabeled or free <= PLENTY
    if not world.any((trainer.task is not None and asked) or most > room)[0]:
        return whole
    with world.agreed(exchanging=True):
        fixed, each = _needed(session, whole)
        least = 2 if augmented.mixup or augmented.cutmix else 1

        def needs(size: int) -> float:
            tensors = fixed + size * each
            return KEPT * tensors + BESIDE if on_cpu else SLACK * tensors

        size = whole
        while needs(size) > room:
            if size <= least:
                raise DeviceError(
                    "out of memory with one image per pass: choose a smaller --model, "
                    "--image-size or --batch"
                )
            size = -(-size // 2)
    size = min(world.gather(size))
    if size < whole:
        world.say(
            f"{size:,} of {whole:,} images per pass, which may change the result: together they "
            f"would take about {storage(needs(whole))} of the {storage(free)} free"
        )
    return size


def _needed(session: Session, whole: int) -> tuple[float, float]:
    """Return the bytes that a step takes whatever its images, and those that each image adds.

    Both are infinite where two images are too many.

    Args:
        session: a few passes of a few of its images are measured
        whole: images that are loaded at once
    """
    recipe, trainer, source = session.recipe, session.trainer, session.source
    few = replace(recipe, batch=min(SAMPLE, recipe.batch))
    batch = batches_of(few, source, trainer.model.config, ALONE, session.task.order)[0]
    if not len(batch):  # every image is damaged
        return 0.0, 0.0
    fixed, each = _measured(trainer, session.state, batch)
    if trainer.device.type == "cpu":
        workers = choose_workers(source, session.task.host.workers, session.world.local_size)
        views = [view.images for view in (batch, *batch.views)]
        loaded = sum((v.patches if isinstance(v, Packed) else v).nbytes for v in views)
        fixed += (2 + 2 * workers) * whole * loaded / len(batch)
    return fixed, each


def _measured(trainer: Trainer, state: RunState, batch: Batch) -> tuple[float, float]:
    """Return what `_needed` does, from steps of two images, then passes of 2, 4, 8 and so on.

    The second step has moments; the passes are beside gradients that are there.
    """
    world, size = trainer.world, 2
    first = counted(next(batch.pieces(size)), world)
    limit = math.inf if world.size > 1 else free_memory(trainer.device)
    eager: AbstractContextManager[object] = nullcontext()
    if trainer.engine.compiled:  # for the passes of a batch, not for these
        eager = torch.compiler.set_stance("force_eager")

    def peak(work: Callable[[Batch], object], images: Batch) -> int:
        return peak_beside(lambda: work(images), trainer.device, limit)

    def steps(images: Batch) -> None:
        for _ in range(2):
            trainer.step(state, images, lr=0.0, seed=0)

    fixed, each = math.inf, 0.0
    accumulate = partial(trainer.accumulate, seed=0)
    with undone(state), eager, suppress(MemoryError, DeviceError, torch.OutOfMemoryError):
        fixed = peak(steps, first)
        before = peak(accumulate, first)
        while (size := 2 * size) <= len(batch):
            now = peak(accumulate, counted(next(batch.pieces(size)), world))
            before, each = now, 2 * (now - before) / size
    trainer.drop()
    return fixed, each or fixed / len(first)


def peak_beside(work: Callable[[], object], device: torch.device, limit: float) -> int:
    """Return the most bytes of tensors while some work is done, beside those that are there.

    Raises:
        MemoryError: they are more than the limit, on a CPU.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        restart_peak(device)
        work()
        return peak_memory(device) - before
    with Allocated(limit) as allocated:
        work()
    return allocated.peak
