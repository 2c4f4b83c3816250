"""The study of Table 7: what is pre-trained and fine-tuned, and that it runs to its end."""

from pathlib import Path

import pytest

from vitlab.experiments.timing import Cost, Plan
from vitlab.models.cost import cost
from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import Base, small
from vitlab.studies.grid import cells_of
from vitlab.studies.papers.pretraining import resnet_arms as arms


def macs(trained: Recipe) -> int:
    return cost(trained.model.config(classes=10)).macs


def test_small_resnet_costs_what_the_base_vit_does() -> None:
    base = small("given")
    by_name = {arm.name: arm.recipe for arm in arms(Base(base))}
    assert macs(by_name["small-adamw"]) == pytest.approx(macs(base), rel=0.03)
    assert macs(by_name["large-sgd"]) > 1.5 * macs(base)


def test_both_optimizers_search_as_many_rates_and_are_fine_tuned_alike() -> None:
    found = {arm.name: arm for arm in arms(Base(small("digits")))}
    pair = found["small-adamw"], found["small-sgd"]
    assert pair[0].recipe == pair[1].recipe
    assert pair[0].recipe.optimizer.optimizer == "sgd"
    assert [arm.after for arm in pair] == ["small-adamw-pretraining", "small-sgd-pretraining"]
    before = [found[arm.after] for arm in pair]
    assert [arm.recipe.optimizer.optimizer for arm in before] == ["adamw", "sgd"]
    assert len(before[0].rates) == len(before[1].rates) == 3


def test_fine_tunes_on_the_downstream_data_at_the_size_of_pre_training() -> None:
    transfer = {arm.name: arm.recipe for arm in arms(Base(small("given"), downstream="digits"))}
    assert transfer["small-sgd"].data.data == "digits"
    assert transfer["small-sgd"].model.image_size == 32
    assert not transfer["small-sgd"].augment.flip  # a mirrored digit is another one, or none
    assert transfer["small-sgd-pretraining"].augment.flip
    assert transfer["small-sgd-pretraining"].data.data == "given"


def test_printed_means_are_those_of_the_printed_accuracies() -> None:
    for arm in arms(Base(small("digits"))):
        if arm.paper:
            *each, mean = arm.paper.values()
            assert sum(each) / len(each) == pytest.approx(mean, abs=1e-4)


def test_a_plan_counts_fixed_steps_as_they_are() -> None:
    """Pre-training is stretched to the budget; 100 steps of fine-tuning stay 100 steps."""
    own = [arm for arm in arms(Base(small("digits"))) if arm.name.startswith("small-sgd")]
    cells = cells_of(own, [0], Path(), rates=(1.0, 2.0), further=0)
    costs = {arm.name: Cost(0.0, 0.2, 50.0, 2e7) for arm in own}
    plan = Plan(0.0, costs).within(340.0, cells, 1)
    # an epoch takes 10 s in the last run and 9 s in two on nine tenths of the images; and 3 x 20 s
    assert plan.epochs == pytest.approx((340 - 60) / 28, abs=0.11)  # rounded down
    assert plan.macs(cells) == pytest.approx(2.8 * 1e9 * plan.epochs + 3 * 2e9)
