"""The study of optimizers: its rows, what an update costs, and its claim about SAM."""

from pathlib import Path

import pytest
import torch

import vitlab
from conftest import LIGHT
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import PackageError
from vitlab.studies.base import Base, options_of, small, table
from vitlab.studies.claims import judged
from vitlab.studies.design import Trained
from vitlab.studies.grid import cells_of
from vitlab.studies.papers import claims_of
from vitlab.studies.papers.advice import SOME, update_cost
from vitlab.studies.papers.advice import optimizer_arms as arms
from vitlab.studies.step_cost import final_loss
from vitlab.studies.study import check_packages

TINY = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
TRIED = table("optimizers")


def test_every_row_chooses_its_learning_rate_on_held_out_training_images() -> None:
    every = tuple(arms(Base(small("digits"))))
    assert [arm.name for arm in every[: len(TRIED)]] == list(TRIED)
    assert len(every) == len(TRIED) + 2 * len(SOME)
    cells = cells_of(every, (0, 1), Path())
    recipes = {cell.name: cell.recipe for cell in cells if "rate" in cell.labels}
    assert len(recipes) == 3 * len(every)
    assert {recipe.data.dev_share for recipe in recipes.values()} == {0.1}
    assert recipes["lars-lr-0.3"].optimizer.lr == pytest.approx(0.3)


def test_every_row_has_a_cost_and_the_state_that_is_known_of_it() -> None:
    recipe, floats = small("digits", TINY), {}
    digits, model = open_to_learn("digits"), vitlab.create(TINY, 10, 8)
    for name in TRIED:
        own = recipe.changed(**options_of("optimizer-options", name))
        found = update_cost(Trained(model, own, digits, Path(), torch.device("cpu")))
        assert found["update_ms"] > 0, name
        floats[name] = found["floats"]
    assert floats["adamw"] == floats["adamw+sam"] == pytest.approx(2, abs=0.02)
    assert floats["sgd"] == pytest.approx(1, abs=0.02)
    assert floats["adafactor"] < 0.5


def test_sam_helping_the_vit_more_is_a_difference_of_differences() -> None:
    claim = next(each for each in claims_of("optimizers") if "helps the ViT more" in each.text)
    values = {"adamw": (0.70, 0.71), "adamw+sam": (0.76, 0.77)}
    values |= {"resnet-adamw": (0.80, 0.81), "resnet-adamw+sam": (0.82, 0.83)}
    (verdict,) = judged([claim], {"": values})
    assert verdict.difference == pytest.approx((0.06 - 0.02) / 2)
    assert verdict.word == "confirmed"


def test_rows_of_missing_packages_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = tuple(arms(Base(small("digits"))))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PackageError) as refused:
        vitlab.study("optimizers", out=tmp_path / "x", only=("adamw", "lars"), host=LIGHT)
    says = str(refused.value)
    assert says.startswith("the row lars needs the package pytorch_optimizer: pip install")
    assert says.endswith("or name other rows with only=")
    assert not (tmp_path / "x").exists()
    check_packages([arm for arm in every if arm.name in ("sgd", "adam", "adamw", "shampoo")])
    with pytest.raises(PackageError, match="the row soap needs"):
        check_packages([arm for arm in every if arm.name == "soap"])


def test_the_training_loss_is_that_of_many_batches() -> None:
    """Lines every 4 steps, and one at the end: the last tenth of 40 steps is steps 37 to 40."""
    lines = [{"step": step, "loss": float(step)} for step in (*range(4, 41, 4), 41)]
    assert final_loss(lines) == pytest.approx((4 * 40 + 1 * 41) / 5)
    every = [{"step": step, "loss": 1.0 if step > 90 else 9.0} for step in range(1, 101)]
    assert final_loss(every) == 1.0
