"""What a run finds out before its first step: what fits, what compiles, how fast it goes.

Steps are taken for it with a learning rate of 0, then everything is put back: the run that follows
is to the last bit the one that a recipe with the numbers decided here describes.
"""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from vitlab.data.loading.batches import Batch
from vitlab.device import peak_memory
from vitlab.errors import UserError
from vitlab.progress import say
from vitlab.training.budget import FEWEST, FIRST, LONGEST, SHARE, Pace, announcement
from vitlab.training.checkpoint import Checkpoint
from vitlab.training.state import State
from vitlab.training.step import recompute as memory
from vitlab.training.stop import Interrupted, Stop
from vitlab.units import storage

if TYPE_CHECKING:
    from vitlab.training.loop import Loop

MANY = 10**9  # steps, more than are ever measured


def rehearse(loop: "Loop", stop: Stop) -> None:
    """Decide what the recipe leaves open, and compile."""
    pieces = loop.recipe.micro_batch == "auto"
    steps = bool(loop.pacer.budget) and not loop.decided.plan
    if not (pieces or steps or loop.engine.compiled):
        return
    with put_back(loop.state):
        batches = loop.batches(loop.state.step + (MANY if steps else 1))
        batch = next(batches)
        if pieces:
            loop.settle(replace(loop.decided, micro_batch=choose_pieces(loop, batch)))
        if loop.engine.compiled:
            compile_for(loop, batch)
        pace = measure(loop, batches, batch, stop) if steps else None
        batches.close()
    if pace is not None:
        total = fit(loop, pace)
        loop.settle(replace(loop.decided, plan=((0, total),)))
        say(announcement(total, loop.recipe.epochs, loop.pacer.budget))
    if pieces or steps:
        loop.folder.decide(loop.decided)


@contextmanager
def put_back(state: State) -> Iterator[None]:
    """Whatever happens to a state in the block, afterwards it is as it was."""
    now = state.checkpoint()
    tensors = {name: t.detach().to("cpu", copy=True) for name, t in now.tensors.items()}
    before = Checkpoint(tensors, copy.deepcopy(now.state))
    yield
    state.restore(before)


def choose_pieces(loop: "Loop", batch: Batch) -> int:
    """The most images at once, of the batch or of a half, a quarter, … of it, that fit."""
    device, whole = loop.device, loop.recipe.batch
    least = 2 if loop.recipe.augment.mixup or loop.recipe.augment.cutmix else 1  # mixed in pairs
    if device.type == "cuda":

        def learn(size: int) -> None:
            loop.learn(batch, 0.0, size, only_first=True)

        size = memory.largest_that_fits(
            whole, lambda n: n >= least and memory.try_on_gpu(learn, n, device)
        )
        have = torch.cuda.mem_get_info(device)[1]
        say(
            f"{size:,} of {whole:,} images at once: {storage(peak_memory(device))} of "
            f"{storage(have)} at the peak"
        )
        return size
    few = next(batch.pieces(4))
    kept = memory.kept_for_backward(lambda: loop.loss_of(few)) / max(1, len(few))
    # moments and gradients are still to come; the backward pass wants about half as much again
    weights = sum(w.numel() * w.element_size() for w in loop.state.model.parameters())
    room = memory.SHARE * memory.free_memory() - 4 * weights
    size = memory.largest_that_fits(whole, lambda n: n >= least and 1.5 * n * kept <= room)
    say(
        f"{size:,} of {whole:,} images at once: about {storage(1.5 * size * kept)} of "
        f"{storage(memory.free_memory())} free"
    )
    return size


def compile_for(loop: "Loop", batch: Batch) -> None:
    """Compile forward and backward pass for the pieces of a batch; without, if that fails."""
    start = time.monotonic()
    try:
        loop.learn(batch, 0.0)
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a compiler's errors are of any kind
        reason = " ".join(str(error).split()[:30]) or type(error).__name__
        say(f"torch.compile failed, going on without it: {reason}")
        loop.engine.give_up_compiling()
        return
    say(f"compiled in {time.monotonic() - start:.0f} s")


def measure(loop: "Loop", batches: Iterator[Batch], batch: Batch, stop: Stop) -> Pace:
    """What a step, a look at the held-out images and a checkpoint take."""
    for _ in range(FIRST):
        loop.learn(batch, 0.0)
        batch = next(batches)
    _wait(loop.device)
    begin, count, span = time.monotonic(), 0, min(LONGEST, SHARE * loop.pacer.budget)
    while count < FEWEST or time.monotonic() - begin < span:
        loop.learn(batch, 0.0)
        batch = next(batches)
        count += 1
        if stop.asked:
            raise Interrupted("stopped before the first step; --resume starts again")
    _wait(loop.device)
    step = (time.monotonic() - begin) / count
    begin = time.monotonic()
    loop.predict(loop.test)
    look = time.monotonic() - begin
    return Pace(step, look, loop.recipe.test_every * loop.epoch, look)


def fit(loop: "Loop", pace: Pace) -> int:
    """The steps that the rest of the budget has room for."""
    begin = time.monotonic()
    loop.save()
    save = time.monotonic() - begin
    often = min(1.0, pace.step / max(loop.host.checkpoint_every, 1e-9))
    pace = replace(pace, step=pace.step + save * often, last=pace.last + save)
    return pace.fits(loop.pacer.budget - loop.pacer.spent)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
