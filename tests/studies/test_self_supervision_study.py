"""The studies of learning without labels: arms, the papers' figures, and equal computation."""

from pathlib import Path

import pytest

import vitlab
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.probes.feature_options import Probing
from vitlab.evaluation.probes.probing import probe
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.studies.base import Base, small
from vitlab.studies.papers.pretraining import feature_arms, label_arms
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


def test_features_are_of_models_that_learned_for_equally_long() -> None:
    arms = {arm.name: arm for arm in feature_arms(Base(small("digits")))}
    rows = {name: arm for name, arm in arms.items() if arm.row}
    assert {*rows} == {"random", *METHODS, "lejepa", "visreg"}
    assert {arm.macs for name, arm in rows.items() if name != "random"} == {1.0}
    assert {arm.recipe.model.model for arm in rows.values()} == {rows["random"].recipe.model.model}
    regularizers = [rows[name].recipe.pretext.regularizer for name in ("lejepa", "visreg")]
    assert regularizers == ["sigreg", "visreg"]
    assert [name for name, arm in rows.items() if arm.guide] == ["beit"]
    assert rows["visreg"].paper["knn"] - rows["mae"].paper["knn"] == pytest.approx(0.144)


def test_frozen_features_are_judged_as_by_fewshot(tmp_path: Path) -> None:
    recipe, host = small("digits", "ViT(width=32,depth=2,heads=2,mlp=32)/2"), Host(device="cpu")
    how = {"epochs": 0.1, "seeds": 1, "at_once": 1, "only": ("random", "visreg")}
    result = vitlab.study("features", out=tmp_path / "out", recipe=recipe, host=host, **how)
    means = {row["name"]: row["mean"] for row in result["rows"]}
    model = vitlab.load(tmp_path / "out" / "visreg-seed-0")
    how = Probing(protocol=("knn", "logistic"), cache="no")
    found = probe(model, "digits", how, Compute("cpu", engine="plain", workers=0))
    assert means["visreg"]["knn"] == found["knn"]["20"]["accuracy"]
    assert means["visreg"]["linear"] == pytest.approx(found["logistic"]["accuracy"], abs=0.01)
    assert 1 < means["visreg"]["feature_rank"] <= 32
    assert means["random"]["knn"] != means["visreg"]["knn"] > 0.3
