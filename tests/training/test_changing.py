"""A run that goes on with other options than it was started with."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import call
from steps import each_step
from training.kept import EACH, SMALLEST, killed, outcome, stopped
from vitlab.errors import RunError
from vitlab.options import hints
from vitlab.runs.recipe_file import recipe_in
from vitlab.runs.run_folder import RunFolder
from vitlab.training.resume import MAY_CHANGE
from vitlab.training.state import RunState
from vitlab.training.step import Trainer

QUICK = SMALLEST | {"steps": 12, "batch": 16, "lr": 1e-3, "test_every": 1.0}
RECIPE = vitlab.recipe("digits", **QUICK)


def changed(folder: Path, change: bool = True, **how: Any) -> Any:
    return vitlab.train(RECIPE.changed(**how), folder, resume=True, change=change, host=EACH)


def test_another_rate_holds_from_the_next_step_on_and_is_written_down(tmp_path: Path) -> None:
    stopped(5, RECIPE, tmp_path / "run")
    rates: list[tuple[int, float, float]] = []

    def note(trainer: Trainer, state: RunState, batch: object) -> None:
        group = state.optimizer.param_groups[0]
        rates.append((state.step, float(group["lr"]), group["weight_decay"]))

    flat = {"warmup": 0.0, "schedule": "constant"}
    with each_step(after=note):
        changed(tmp_path / "run", lr=2e-4, weight_decay=0.3, drop_path=0.1, steps=9, **flat)
    assert [step for step, *_ in rates] == [*range(6, 10)]
    assert {lr for _, lr, _ in rates} == {2e-4}
    assert {decay for *_, decay in rates} == {0.3}
    tables = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert tables["optimizer"]["lr"] == 2e-4
    changes = {each["option"]: each for each in tables["changes"]}
    assert changes["lr"] == {"step": 5, "option": "lr", "before": 1e-3, "after": 2e-4}
    assert set(changes) == {"lr", "weight_decay", "drop_path", "steps", *flat}
    again = recipe_in(tmp_path / "run")
    assert again is not None
    assert again.optimizer.lr == 2e-4


def test_it_goes_on_to_the_same_bits_afterwards(tmp_path: Path) -> None:
    """Changed after step 5, then killed and resumed without a word, or not killed."""
    for name in ("whole", "cut"):
        stopped(5, RECIPE, tmp_path / name)
    changed(tmp_path / "whole", lr=2e-4)
    lower = RECIPE.changed(lr=2e-4)
    killed(8, lower, tmp_path / "cut", change=True)
    changed(tmp_path / "cut", lr=2e-4)  # the same command again, as a scheduler would
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    assert len(RunFolder(tmp_path / "cut").tables["changes"]) == 1


def test_changed_after_the_last_checkpoint_was_lost(tmp_path: Path) -> None:
    stopped(5, RECIPE, tmp_path / "run")
    killed(6, RECIPE.changed(lr=2e-4), tmp_path / "run", change=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    changed(tmp_path / "run", change=False, lr=2e-4)
    changes: Any = RunFolder(tmp_path / "run").tables["changes"]
    assert [each["step"] for each in changes] == [0]
    assert vitlab.load(tmp_path / "run").config.classes == 10


def test_what_may_not_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped(2, RECIPE, tmp_path / "run")
    before = (tmp_path / "run" / "run.toml").read_bytes()
    with pytest.raises(
        RunError, match=r"with lr=0.001, not 0.1: .* or pass change=True to continue"
    ):
        changed(tmp_path / "run", change=False, lr=0.1)
    for how, text in (
        ({"batch": 8}, "batch=16, not 8, and batch cannot change within a run: leave the"),
        ({"layer_scale": 0.1}, "layer_scale=0.0, not 0.1, and layer_scale cannot change"),
        ({"seed": 4}, "seed=0, not 4, and seed cannot change"),
        ({"optimizer": "lamb"}, "optimizer=adamw, not lamb, and optimizer cannot change"),
    ):
        with pytest.raises(RunError, match=text):
            changed(tmp_path / "run", lr=0.1, **how)
    assert (tmp_path / "run" / "run.toml").read_bytes() == before
    changed(tmp_path / "run", change=False)
    with pytest.raises(RunError, match=r"is finished, with lr=0.001, not 0.1: choose another"):
        changed(tmp_path / "run", lr=0.1)
    code, _, err = call(capsys, "train", "digits", "--change")
    assert (code, "change=True applies only with resume" in err) == (2, True)
    for table, names in MAY_CHANGE.items():
        part = vitlab.recipe("digits")
        known = hints(type(part if table == "recipe" else getattr(part, table)))
        assert set(names) <= set(known)


def test_other_functions_of_the_users_own(tmp_path: Path) -> None:
    stopped(2, RECIPE, tmp_path / "run")
    vitlab.train(RECIPE, tmp_path / "run", resume=True, change=True, host=EACH, transform=darker)
    options = [each["option"] for each in RunFolder(tmp_path / "run").tables["changes"]]
    assert options == ["transform", "transform_sha256"]


def darker(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return images // 2
