"""Something that happens before or after a certain training step, through `Trainer.step`."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from vitlab.data.loading.batch import Batch
from vitlab.measure.allocated import peak_bytes
from vitlab.training.guard import Figures
from vitlab.training.state import RunState
from vitlab.training.step import Trainer

Action = Callable[[Trainer, RunState, Batch], Any]


@contextmanager
def each_step(before: Action | None = None, after: Action | None = None) -> Iterator[None]:
    """Within the context, call these before and after every step; `state.step` steps are done.

    Steps that are rehearsed, at a learning rate and from a seed of 0, do not count.
    """
    real = Trainer.step

    def step(self: Trainer, state: RunState, batch: Batch, lr: float, seed: int) -> Figures:
        counts = bool(lr or seed)
        if before and counts:
            before(self, state, batch)
        figures = real(self, state, batch, lr, seed)
        if after and counts:
            after(self, state, batch)
        return figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", step)
        yield


@contextmanager
def killed_before(step: int) -> Iterator[None]:
    """Within the context, a run ends without saving, just before it takes a step (from 0)."""

    def kill(trainer: Trainer, state: RunState, batch: Batch) -> None:
        if state.step == step:
            raise KeyboardInterrupt

    with each_step(before=kill):
        yield


@contextmanager
def asked_to_stop(steps: int, rank: int = 0) -> Iterator[None]:
    """Within the context, one process of a session gets SIGTERM after some steps."""
    taken = 0

    def ask(trainer: Trainer, state: RunState, batch: Batch) -> None:
        nonlocal taken
        taken += 1
        if taken == steps and trainer.world.rank == rank:
            signal.raise_signal(signal.SIGTERM)

    with each_step(after=ask):
        yield


@contextmanager
def first_peaks() -> Iterator[list[int]]:
    """Within the context, note the most bytes of tensors while a run's first gradient is found."""
    found: list[int] = []

    def note(trainer: Trainer, state: RunState, batch: Batch) -> None:
        if not state.step:
            found.append(peak_bytes(lambda: trainer.accumulate(batch, 0), ()))
            trainer.drop()

    with each_step(before=note):
        yield found
