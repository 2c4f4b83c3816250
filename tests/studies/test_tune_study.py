"""What to fine-tune: the rows that say what tuning is worth at all, and pairs by seed."""

from pathlib import Path

import pytest

import vitlab
from vitlab.errors import OptionError
from vitlab.recipes.recipe import Host
from vitlab.studies.base import Base, small
from vitlab.studies.papers.three_things import tune_arms

HOST = Host(device="cpu", workers=0, check_duplicates="no")
ONLY = ("resolution-none", "resolution-sgd-all", "resolution-sgd-attention",
        "resolution-adamw-all", "resolution-adamw-attention")  # fmt: skip


def test_every_part_is_tuned_and_the_classifier_alone_and_nothing() -> None:
    arms = {arm.name: arm for arm in tune_arms(Base(small("digits"), downstream="other"))}
    tuned = {arm.recipe.start.tune for arm in arms.values() if arm.row}
    assert tuned == {"all", "attention", "ffn", "head"}
    assert len([name for name in arms if name.startswith("transfer")]) == 8
    assert {arm.after for arm in arms.values() if arm.row} == {"first"}
    assert arms["resolution-none"].recipe.model.image_size == 8
    assert arms["resolution-adamw-all"].recipe.optimizer.lr == 1e-3
    assert arms["first"].recipe.model.image_size == 6


def test_starts_from_trained_weights_at_three_quarters_of_the_size(tmp_path: Path) -> None:
    vitlab.save(vitlab.create("ViT(width=32,depth=1,heads=2,mlp=32)/4", 3, 24), tmp_path)
    recipe = vitlab.recipe("finetune", data="digits", weights=str(tmp_path))
    for given, lower, full in ((recipe, 16, 24), (recipe.changed(image_size=16), 12, 16)):
        arms = {arm.name: arm.recipe for arm in tune_arms(Base(given))}
        assert arms["first"].start.weights == str(tmp_path)
        assert arms["first"].model.image_size == lower
        assert arms["resolution-adamw-attention"].model.image_size == full
        assert arms["resolution-adamw-all"].optimizer.lr == 1e-4  # more ruins released weights
    vitlab.save(vitlab.create("BiT-R26x1", 3, 32), tmp_path / "resnet")
    with pytest.raises(OptionError, match="weights of a ViT"):
        list(tune_arms(Base(recipe.changed(weights=str(tmp_path / "resnet")))))


def test_what_is_not_tuned_answers_as_before_and_seeds_are_paired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.studies.papers.three_things.FACTORS", ())
    recipe = small("digits", "ViT(width=32,depth=1,heads=2,mlp=32)/2")
    how = {"epochs": 1.0, "seeds": 2, "only": ONLY, "at_once": 1}
    result = vitlab.study("tune", out=tmp_path, recipe=recipe, host=HOST, **how)
    row = next(each for each in result["rows"] if each["name"] == "resolution-none")
    for seed, accuracy in enumerate(row["values"]["accuracy"]):
        model = vitlab.load(tmp_path / f"first-seed-{seed}" / "model").resize(8)
        before = vitlab.evaluate(model, "digits", device="cpu")
        assert accuracy == pytest.approx(before["accuracy"], abs=2.5 / 359)  # in another precision
    claim = result["claims"][0]
    assert claim["paired_interval"] is not None
    assert claim["interval"] is not None
    assert claim["paired_interval"] != claim["interval"]
    assert " in pairs (± " in (tmp_path / "results.md").read_text(encoding="utf-8")
