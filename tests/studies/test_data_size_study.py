"""Growing subsets: the same number of steps for each, and figures of all of them."""

import json
from pathlib import Path

import pytest

import vitlab
from vitlab.models.cost import cost
from vitlab.recipes.recipe import Host
from vitlab.studies.base import Base, small
from vitlab.studies.papers.pretraining import subset_arms as arms

TINY = "ViT(width=32,depth=2,heads=2,mlp=32)/2"


def test_subsets_have_equal_steps_and_warm_up() -> None:
    for arm in arms(Base(small("given"))):
        share = arm.recipe.data.train_images or 1.0
        assert arm.recipe.epochs * share == pytest.approx(1.0)
        assert arm.recipe.schedule.warmup * share == pytest.approx(0.1)


def test_resnet_costs_what_the_small_vit_does() -> None:
    models = {arm.name: arm.recipe.model.config(classes=10) for arm in arms(Base(small("given")))}
    macs = {name: cost(config).macs for name, config in models.items() if name.endswith("-100")}
    assert macs["resnet-100"] == pytest.approx(macs["vit-small-100"], rel=0.05)
    assert macs["vit-large-100"] == pytest.approx(2 * macs["vit-small-100"], rel=0.05)


def test_runs_to_its_end(tmp_path: Path) -> None:
    how = {"epochs": 0.1, "seeds": 1, "only": ("vit-small-3", "vit-small-100"), "at_once": 1}
    host, recipe = Host(device="cpu", workers=0), small("digits", TINY)
    result = vitlab.study("data-size", out=tmp_path, recipe=recipe, host=host, **how)
    means = [row["mean"] for row in result["rows"]]
    assert [each["train_images"] for each in means] == [43, 1438]
    folders = [tmp_path / f"{row['name']}-seed-0" / "figures.json" for row in result["rows"]]
    steps = [json.loads(file.read_text(encoding="utf-8"))["steps"] for file in folders]
    assert steps == [4, 3]  # of 43 images, all there are, and of 64
    assert all(0 < each["few_shot"] < 1 for each in means)
    assert "training images" in (tmp_path / "picture.svg").read_text(encoding="utf-8")
