"""`vitlab train`: JSON, the recipe on the command line, resuming, refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import vitlab
from conftest import QUICK, SHOWN, call, fewer_digits
from vitlab.commands.train import Train, build
from vitlab.console.parsing import parse
from vitlab.errors import OptionError
from vitlab.runs.run_folder import RunFolder


def test_train_prints_one_json_object(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    words = ["train", str(photos), "--out", str(tmp_path / "r"), "--json", "--seed", "4", *QUICK]
    words += ["--dropout", "0.1", "--no-flip", "--precision", "bf16"]
    code, out, err = call(capsys, *words, effort=SHOWN)
    assert code == 0, err
    figures = json.loads(out)
    assert figures["run"] == str(tmp_path / "r")
    assert Path(figures["report"]).is_file()
    recipe = (tmp_path / "r" / "run.toml").read_text()
    for line in ("seed = 4", "dropout = 0.1", "flip = false", 'precision = "bf16"', "epochs = 1"):
        assert line in recipe
    assert "vitlab train" in recipe
    again = ["train", "--out", str(tmp_path / "r"), "--resume", "--json"]
    code, out, err = call(capsys, *again)
    assert (code, json.loads(out)) == (0, figures)


def test_a_quiet_run_says_nothing_but_its_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    out = tmp_path / "r"
    code, text, err = call(capsys, "train", str(photos), "--out", str(out), "--quiet", *QUICK)
    assert (code, err) == (0, "")
    assert "accuracy" in text
    code, _, err = call(capsys, "train", str(photos), "--out", str(out), "--quiet")
    assert (code, err.count("\n")) == (2, 1)
    assert "already finished" in call(capsys, "train", "--out", str(out), "--resume")[2]


def test_defaults_are_those_of_the_run_to_continue(digits_run: Path) -> None:
    continued = build(parse(Train, ["--out", str(digits_run), "--resume"]))
    assert continued.recipe == RunFolder(digits_run).recipe
    assert continued.recipe.batch == 256
    command = RunFolder(digits_run).tables["run"]["command"]
    assert command.startswith(f"vitlab train digits --out {digits_run} --model 'ViT(width=16,")
    fresh = build(parse(Train, ["digits", "--out", str(digits_run)]))
    assert fresh.recipe.batch == 64


def test_following_the_advice_of_schedule_free() -> None:
    words = ["digits", "--optimizer", "schedule-free"]
    for advice, more in (
        ("set schedule=constant and cooldown=0", ["--schedule", "constant", "--cooldown", "0"]),
        ("set ema=0", ["--ema", "0"]),
    ):
        with pytest.raises(OptionError, match=advice):
            build(parse(Train, words))
        words += more
    assert build(parse(Train, words)).recipe.average.ema == 0


def test_a_runs_recipe_can_be_given_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is named: not one that happens to stand where a recipe's own name is."""
    tiny = ["train", "digits", "--model", "ViT(width=8,depth=1,heads=1,mlp=8)/4", "--steps", "1"]
    first, again = tmp_path / "digits", tmp_path / "again"
    with fewer_digits():
        assert call(capsys, *tiny, "--lr", "3e-3", "--out", str(first))[0] == 0
    old = RunFolder(first).recipe
    for place in (first, first / "run.toml"):
        given = parse(Train, ["digits", "--recipe", str(place), "--lr", "1e-3"])
        new = build(given).recipe
        assert new.optimizer.lr == 1e-3
        assert new.model.model == old.model.model
        assert replace(new, optimizer=old.optimizer, model=old.model) == old
    usual = vitlab.recipe("digits", model=tiny[3]).optimizer.lr
    for number, place in enumerate((first, tmp_path)):
        monkeypatch.chdir(place)
        words = [*tiny[1:], *(["--recipe", "digits"] if number else []), "--out", str(again)]
        assert build(parse(Train, words)).recipe.optimizer.lr == usual != 3e-3
