"""What a run tries before its first step leaves no trace, also when it fails."""

import copy
import math
from typing import Any

import pytest
import torch

import vitlab
from conftest import TINY
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Augment
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.errors import DivergedError
from vitlab.models.create import build as build_model
from vitlab.optim.averaging import WeightAverage
from vitlab.optim.optimizers import build
from vitlab.training import trial_steps
from vitlab.training.state import RunState
from vitlab.training.step import Trainer
from vitlab.training.stop import Interrupted


@pytest.fixture
def ready() -> tuple[Trainer, RunState, Batch]:
    """A trainer, the state it starts from, and a batch."""
    recipe = vitlab.recipe("digits", **TINY | {"batch": 8})
    splits = open_to_learn("digits")
    model = vitlab.create(
        TINY["model"], len(splits.classes), 8, channels=1, generator=torch.Generator()
    )
    state = RunState(model, WeightAverage(model, 0.9), build(model, recipe.optimizer))
    batch = TrainingBatches(splits.train, model.config, Augment(), 0, 8)[0]
    return Trainer(model, recipe), state, counted(batch, ALONE)


def snapshot(state: RunState) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    now = state.checkpoint()
    return {k: t.clone() for k, t in now.tensors.items()}, copy.deepcopy(now.state)


def same(state: RunState, before: tuple[dict[str, torch.Tensor], dict[str, Any]]) -> None:
    tensors, rest = snapshot(state)
    assert tensors.keys() == before[0].keys()
    assert all(torch.equal(tensors[name], before[0][name]) for name in tensors)
    assert rest == before[1]


@pytest.mark.parametrize("error", [None, Interrupted, vitlab.UserError])
def test_a_state_is_restored_whatever_happens(
    ready: tuple[Trainer, RunState, Batch], error: type[BaseException] | None
) -> None:
    trainer, state, batch = ready
    trainer.step(state, batch, 0.1, 1)  # moments there are
    before = snapshot(state)
    try:
        with trial_steps.undone(state):
            trainer.step(state, batch, 0.1, 2)
            state.tally.seconds += 5
            state.tally.bad.note("x")
            state.best.compare(1, 0.5, 1.0, state.model)
            assert state.step == 2
            assert not torch.equal(
                state.model.head.classify.weight, before[0]["model.head.classify.weight"]
            )
            if error:
                raise error("no")
    except (Interrupted, vitlab.UserError):
        assert error
    same(state, before)


def test_one_step_by_hand(ready: tuple[Trainer, RunState, Batch]) -> None:
    """SGD's step is the learning rate times the clipped gradient; then the average follows."""
    trainer, state, batch = ready
    recipe = vitlab.recipe("digits", optimizer="sgd", momentum=0.0, weight_decay=0.0, clip=0.5)
    trainer.recipe = recipe.changed(batch=8)
    state.optimizer = build(state.model, recipe.optimizer)
    assert state.average is not None
    state.step = 40  # the average's decay is at its full value by then: min(0.9, 41/50)
    before = {name: w.detach().clone() for name, w in state.model.named_parameters()}
    start = {name: w.clone() for name, w in state.average.model.named_parameters()}
    figures = trainer.step(state, batch, 0.25, 7)
    assert (figures.step, figures.images, state.step) == (41, 8, 41)
    grads = {name: w.grad for name, w in state.model.named_parameters() if w.grad is not None}
    total = torch.cat([grad.flatten() for grad in grads.values()]).norm()
    assert float(total) == pytest.approx(min(0.5, float(figures.numbers[-1])), rel=1e-4)
    for name, weight in state.model.named_parameters():
        torch.testing.assert_close(weight, before[name] - 0.25 * grads[name])
    for name, weight in state.average.model.named_parameters():
        new = dict(state.model.named_parameters())[name]
        torch.testing.assert_close(weight, 0.82 * start[name] + 0.18 * new, rtol=0, atol=1e-6)


def test_a_batch_without_a_usable_image_is_a_step_that_moves_nothing(
    ready: tuple[Trainer, RunState, Batch],
) -> None:
    trainer, state, batch = ready
    empty = counted(next(batch.pieces(8)), ALONE)
    tensors = {k: v[:0] for k, v in vars(empty).items() if isinstance(v, torch.Tensor)}
    before = snapshot(state)[0]
    figures = trainer.step(state, Batch(**tensors), 0.1, 1)
    assert (figures.images, figures.loss, figures.fault, state.step) == (0, 0.0, "", 1)
    assert all(torch.equal(t, before[name]) for name, t in snapshot(state)[0].items())


def test_a_model_that_is_broken_before_the_first_step_is_an_error(
    ready: tuple[Trainer, RunState, Batch],
) -> None:
    trainer, state, batch = ready
    with torch.no_grad():
        state.model.head.classify.bias.fill_(torch.nan)
    with pytest.raises(DivergedError, match="non-finite loss before the first step"):
        trainer.try_step(state, batch)


WAYS: list[dict[str, Any]] = [
    {}, {"optimizer": "sgd", "momentum": 0.0}, {"optimizer": "lamb", "ema": 0.0}, {"rho": 0.05},
    {"precision": "bf16-pure", "batch": 64}, {"mixup": 0.5}, {"classes": 10, "depth": 4},
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_memory_of_a_batch_follows_from_that_of_a_few_images(
    way: dict[str, Any],
) -> None:
    recipe = vitlab.recipe("digits", **TINY | {"batch": 128, "ema": 0.9} | way)
    splits = open_to_learn("digits")
    config = recipe.model.config(image_size=8, channels=1, classes=10, labels=splits.classes)
    model = build_model(config)
    average = WeightAverage(model, 0.9) if recipe.average.ema else None
    trainer, state = (
        Trainer(model, recipe),
        RunState(model, average, build(model, recipe.optimizer)),
    )
    batch = counted(TrainingBatches(splits.train, config, recipe.augment, 0, 128)[0], ALONE)
    before = snapshot(state)
    fixed, each = trial_steps._measured(trainer, state, next(batch.pieces(16)))
    same(state, before)

    def steps() -> None:
        for _ in range(2):
            trainer.step(state, batch, 0.1, 1)

    real = trial_steps.peak_beside(steps, torch.device("cpu"), math.inf)
    assert 0.97 * real < fixed + 128 * each < 1.3 * real
