"""The study of inductive bias: equal cost, equal steps, and what it measures."""

import math
from pathlib import Path

import pytest

import vitlab
from vitlab.data.learning import open_to_learn
from vitlab.device import choose
from vitlab.models.cost import cost
from vitlab.studies.base import Base, small
from vitlab.studies.design import Trained
from vitlab.studies.grid import best_of, cells_of, tried
from vitlab.studies.papers import advice, study_named
from vitlab.studies.papers.advice import bias_arms as arms
from vitlab.studies.papers.advice import relies_on as measure

TINY = "ViT(width=16,depth=1,heads=2,mlp=16)/2"


def test_models_of_small_budgets_cost_the_same() -> None:
    found = {arm.name: arm.recipe.model.config(classes=10) for arm in arms(Base(small("given")))}
    macs = [cost(found[f"{kind}-100"]).macs for kind in ("vit", "hybrid", "resnet")]
    assert max(macs) / min(macs) < 1.04


def test_all_rows_take_the_same_steps() -> None:
    for arm in arms(Base(small("given"))):
        percents = int(arm.name.rpartition("-")[2])
        assert arm.recipe.data.train_images == (0 if percents == 100 else percents / 100)
        assert arm.recipe.epochs * percents == pytest.approx(100)
        assert arm.recipe.schedule.warmup == 0.1 * arm.recipe.epochs


def test_learning_rates_are_chosen_with_all_images() -> None:
    every = cells_of(tuple(arms(Base(small("given")))), (0, 1), Path())
    cells = {cell.name: cell for cell in every}
    assert sum("rate" in cell.labels for cell in every) == 9
    rates = {f"resnet-100-lr-{factor:g}": factor for factor in (0.3, 1.0, 3.0)}
    further = [f"resnet-100-lr-further-{number}" for number in (1, 2, 3)]
    last = cells["resnet-1-seed-1"]
    assert last.after == cells["resnet-100-seed-0"].after == (*rates, *further)
    rows = [{"accuracy": 0.5 + (factor == 3.0), "rate": factor} for factor in rates.values()]
    assert best_of(tried([*rows, {}])) == 3.0
    assert last.settle is not None
    settled = last.settle(last, [*rows, {}])
    assert settled is not None
    assert settled.recipe.optimizer.lr == pytest.approx(6e-3)


def test_measures_shares_of_the_accuracy_above_chance_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vitlab.create(TINY, 10, 8)
    splits = open_to_learn("digits")
    trained = Trained(model, small("digits", TINY), splits, tmp_path, choose("cpu"))
    own = vitlab.inductive_bias(model, splits.test, images=1000, device="cpu")
    own |= {"clean": 0.6, "occluded_50": 0.35, "shuffled_4": 0.1, "shape_bias": math.nan}
    monkeypatch.setattr(advice, "inductive_bias", lambda *given, **more: own)
    found = measure(trained)
    assert found["kept_occluded_50"] == pytest.approx(0.5)  # of ten classes
    assert found["kept_shuffled_4"] == 0
    columns = study_named("bias").columns
    assert {column.key for column in columns[1:]} - {"shape_bias"} <= found.keys()
    assert "shape_bias" not in found
    own["clean"] = 0.1
    assert not [key for key in measure(trained) if key.startswith("kept")]
    assert "kept_consistency_1" not in found
