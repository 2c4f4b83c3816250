"""What a recipe and a run's decisions come to in steps."""

import pytest

import vitlab
from vitlab.optim.schedule import learning_rate
from vitlab.recipes.recipe import Decisions
from vitlab.training.plan import evaluation_gap, plan_for
from vitlab.training.step import step_seed


def test_a_long_run_logs_some_steps_and_its_last() -> None:
    recipe = vitlab.recipe("small", steps=1101, batch=10, test_every=2.0)
    plan = plan_for(recipe, Decisions(), images=1000, step=0)
    assert (plan.total, plan.epoch, plan.journal_every) == (1101, 100.0, 2)
    assert [step for step in range(1096, 1102) if plan.logs(step)] == [1096, 1098, 1100, 1101]
    assert sorted(plan.evaluations) == [200, 400, 600, 800, 1000, 1101]


@pytest.mark.parametrize(
    ("images", "held_out", "options", "epochs"),
    [
        (10_000, 2_500, {}, 1.0),  # a fifth held out: as asked for
        (10_000, 2_500, {"test_every": 0.25}, 0.8333),  # four times would cost a third
        (10_000, 50_000, {}, 16.67),  # few images to learn from, many to test on
        (10_000, 50_000, {"test_every": 20}, 20.0),
        (108, 27, {"batch": 128}, 10 * 128 / 108),  # not after each of the steps
        (108, 27, {"batch": 128, "patience": 3}, 1.0),  # they decide on the end
        (100_000, 0, {"test_every": 0.001}, 0.01),
    ],
)
def test_evaluations_cost_a_tenth_of_training_at_most(
    images: int, held_out: int, options: dict[str, float], epochs: float
) -> None:
    recipe = vitlab.recipe("small", **{"batch": 100} | options)
    gap = evaluation_gap(recipe, images / recipe.batch, 1000, held_out)
    assert gap * recipe.batch / images == pytest.approx(epochs, rel=1e-3)
    if not recipe.patience:
        assert held_out / 3 <= 0.1 * gap * recipe.batch + 1e-9
    plan = plan_for(recipe.changed(steps=7), Decisions(), images, 0, held_out)
    assert max(plan.evaluations) == 7  # there is one at the end


def test_a_short_run_is_evaluated_ten_times() -> None:
    recipe = vitlab.recipe("small", batch=128)
    assert [evaluation_gap(recipe, 0.8, total, 27) for total in (5, 50, 500)] == [0.8, 5.0, 10.0]


def test_the_plan_in_force_decides_the_length_and_the_rate() -> None:
    recipe = vitlab.recipe("small", epochs=10, batch=100, budget="90s")
    decisions = Decisions(plan=((0, 80), (40, 60)))
    with pytest.raises(StopIteration):
        Decisions().total_steps(0)
    for step, total in ((0, 80), (39, 80), (40, 60)):
        plan = plan_for(recipe, decisions, images=1000, step=step)
        assert plan.total == total
        assert max(plan.evaluations) == total
        rate = learning_rate(50, total, 10.0, recipe.optimizer.lr, plan.recipe.schedule)
        assert plan.learning_rate(50) == rate
    assert len({step_seed(3, 1), step_seed(3, 2), step_seed(4, 1)}) == 3


def test_warm_up_and_cooldown_keep_their_share_of_the_run() -> None:
    choices = {"schedule": "rsqrt", "warmup": 2.0, "cooldown": 3.0, "batch": 10}
    recipe = vitlab.recipe("small", epochs=20, **choices)
    shorter = Decisions(micro_batch=5, plan=((0, 500),)).applied_to(recipe, images=1000)
    assert (shorter.epochs, shorter.steps, shorter.micro_batch) == (5.0, 0, 5)
    assert (shorter.schedule.warmup, shorter.schedule.cooldown) == (0.5, 0.75)
    recipe = vitlab.recipe("small", steps=2000, warmup_steps=200, batch=10)
    shorter = Decisions(plan=((0, 500),)).applied_to(recipe, images=1000)
    assert (shorter.epochs, shorter.steps, shorter.schedule.warmup_steps) == (5.0, 0, 50)
    assert Decisions().applied_to(recipe, images=1000) == recipe
