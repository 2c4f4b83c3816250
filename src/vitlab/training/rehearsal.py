"""What a run measures before its first step: what fits, what compiles, how fast it goes.

For this, steps are taken with a learning rate of 0 and undone afterwards: the run that follows is,
to the last bit, that of a recipe with the numbers decided here.
"""

import copy
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import torch

from vitlab.data.loading.batches import Batch
from vitlab.device import peak_memory
from vitlab.distributed.shares import counted
from vitlab.errors import UserError
from vitlab.progress import say
from vitlab.training.budget import Pace, announcement
from vitlab.training.pacing import check_useful, measure_pace, rehearse_step
from vitlab.training.saving.checkpoint import Checkpoint
from vitlab.training.saving.state import State
from vitlab.training.session import Session
from vitlab.training.step import recompute as memory
from vitlab.training.step.trainer import Trainer
from vitlab.training.stop import Stop
from vitlab.units import storage

MANY = 10**9  # steps, more than are ever measured


def rehearse(session: Session) -> None:
    """Decide what the recipe leaves open, and compile, with steps that are undone.

    Raises:
        DeviceError: not even one image fits into memory.
        DivergedError: the loss or gradient of the untrained model is not finite.
        OptionError: the budget holds no useful run.
        Interrupted: a stop was asked for.
    """
    state, trainer, pace = session.state, session.trainer, None
    size = session.plan.recipe.micro_batch == "auto"
    budget = 0.0 if session.decisions.plan else session.pacer.budget
    if not (size or budget or trainer.engine.compiled):
        return
    stop = state.step + (MANY if budget else 1)
    with session.stop.at_once(), undone(state), closing(session.batches(stop)) as batches:
        batch = first_of(batches, session.stop)
        if size:
            trainer.micro_batch = choose_micro_batch(trainer, state, batch)
        if trainer.engine.compiled:
            compile_for(trainer, state, batch)
        if budget:
            pace = measure_pace(session, batches, batch)
    if size:
        session.decide(replace(session.decisions, micro_batch=trainer.micro_batch))
    if pace is not None:
        fit_into_budget(session, pace)
    if size or budget:
        session.folder.decide(session.decisions)


def first_of(batches: Iterator[Batch], stop: Stop) -> Batch:
    """Return the first batch, which may take long to load.

    Raises:
        Interrupted: a stop was asked for meanwhile.
    """
    for batch in batches:
        return batch
    raise stop.interrupted()


def fit_into_budget(session: Session, pace: Pace) -> None:
    """Decide on the number of steps that the rest of the budget has room for."""
    check_useful(session, pace)
    begin = time.monotonic()
    session.save()
    pace = pace.with_saves(time.monotonic() - begin, session.host.checkpoint_every)
    for _ in range(2):  # a shorter run may be evaluated more often
        total = max(1, pace.fits(session.pacer.left))
        session.decide(replace(session.decisions, plan=((0, total),)))
        pace = replace(pace, every=session.plan.evaluate_every)
    say(announcement(total, session.plan.recipe.epochs, session.pacer.budget))


@contextmanager
def undone(state: State) -> Iterator[None]:
    """Restore a state at the end of the block, also after an error."""
    now = state.checkpoint()
    tensors = {name: t.detach().to("cpu", copy=True) for name, t in now.tensors.items()}
    before = Checkpoint(tensors, copy.deepcopy(now.state))
    try:
        yield
    finally:
        state.restore(before)


def choose_micro_batch(trainer: Trainer, state: State, batch: Batch) -> int:
    """Return the largest number of images per pass that fits: the batch, a half, a quarter, ….

    Raises:
        DeviceError: not even one image fits.
    """
    augment, whole = trainer.recipe.augment, trainer.recipe.batch
    least = 2 if augment.mixup or augment.cutmix else 1  # images are mixed in pairs
    if trainer.device.type == "cuda":
        return _largest_on_gpu(trainer, state, batch, least)
    few = next(batch.pieces(4))
    kept = memory.kept_for_backward(lambda: trainer.loss(few)) / max(1, len(few))
    # moments and gradients are still to come; the backward pass needs about half as much again
    weights = sum(w.numel() * w.element_size() for w in trainer.model.parameters())
    room = memory.SHARE * memory.free_memory() - 4 * weights
    size = memory.largest_that_fits(whole, lambda n: n >= least and 1.5 * n * kept <= room)
    say(
        f"{size:,} of {whole:,} images per pass: about {storage(1.5 * size * kept)} of "
        f"{storage(memory.free_memory())} free"
    )
    return size


def _largest_on_gpu(trainer: Trainer, state: State, batch: Batch, least: int) -> int:
    """Return the largest number of images per pass, by trying."""
    device, whole = trainer.device, trainer.recipe.batch

    def learn(size: int) -> None:
        rehearse_step(trainer, state, counted(next(batch.pieces(size)), trainer.world))

    size = memory.largest_that_fits(
        whole, lambda n: n >= least and memory.try_on_gpu(learn, n, device)
    )
    total = torch.cuda.mem_get_info(device)[1]
    say(
        f"{size:,} of {whole:,} images per pass: peak {storage(peak_memory(device))} of "
        f"{storage(total)}"
    )
    return size


def compile_for(trainer: Trainer, state: State, batch: Batch) -> None:
    """Compile forward and backward pass for the passes of a batch; if that fails, do without."""
    start = time.monotonic()
    say("compiling the training step …")
    try:
        rehearse_step(trainer, state, batch)
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a compiler raises errors of any kind
        reason = " ".join(str(error).split()[:30]) or type(error).__name__
        say(f"torch.compile failed, continuing without it: {reason}")
        trainer.engine.give_up_compiling()
        return
    say(f"compiled in {time.monotonic() - start:.0f} s")
