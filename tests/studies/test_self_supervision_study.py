"""The study of learning without labels: its arms, the paper's figures, and equal computation."""

from pathlib import Path

import pytest

import vitlab
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.studies.base import Base, small
from vitlab.studies.papers.pretraining import label_arms
from vitlab.studies.step_cost import step_macs

METHODS = ("supervised", "masked-patch", "mae", "beit", "dino")


def test_printed_figures() -> None:
    """ViT-B/16 on ImageNet: 79.9%, which is 2% above from scratch and 4% below supervised."""
    arms = {arm.name: arm for arm in label_arms(Base(small("digits")))}
    percents = {name: 100 * arm.paper["ImageNet"] for name, arm in arms.items() if arm.paper}
    assert percents == pytest.approx(
        {"supervised-1": 84.15, "masked-patch-1": 79.9, "scratch-1": 77.91}
    )


def test_all_methods_are_given_the_same_computation() -> None:
    arms = {arm.name: arm for arm in label_arms(Base(small("digits")))}
    for share, images in ((0.01, 0.01), (0.1, 0.1), (1, 0)):
        scratch = arms[f"scratch-{share}"]
        assert scratch.recipe.data.train_images == images
        for name in METHODS:
            row = arms[f"{name}-{share}"]
            assert row.after == name
            assert row.recipe.data.train_images == images
            assert arms[name].macs + row.macs == scratch.macs
    assert arms["short-1"].macs == arms["mae-1"].macs  # what the paper's claim is against
    assert arms["short-1"].recipe == arms["scratch-1"].recipe
    assert len([arm for arm in arms.values() if arm.row]) == 3 * (1 + len(METHODS)) + 1


def test_runs_of_equal_computation(tmp_path: Path) -> None:
    only = ("mae-0.1", "scratch-0.1")
    recipe, host = small("digits", "ViT(width=32,depth=2,heads=2,mlp=32)/2"), Host(device="cpu")
    place, how = tmp_path / "study", {"epochs": 0.4, "seeds": 1, "at_once": 1, "only": only}
    result = vitlab.study("self-supervision", out=place, recipe=recipe, host=host, **how)
    assert [row["name"] for row in result["rows"]] == list(only)
    macs = {}
    for name in ("mae", *only):
        folder = RunFolder(place / f"{name}-seed-0")
        steps = max(line.get("step", 0) for line in folder.journal.read())
        macs[name] = step_macs(folder.recipe, host) * folder.recipe.batch * steps
    assert macs["mae"] + macs["mae-0.1"] == pytest.approx(macs["scratch-0.1"], rel=0.04)
    assert sum(macs.values()) == pytest.approx(result["macs"], rel=0.04)
