"""A run that goes on with other options than it was started with."""

import json
import shutil
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import TINY, call
from steps import asked_to_stop, each_step, killed_before
from vitlab.errors import RunError
from vitlab.options import hints
from vitlab.recipes.recipe import Host
from vitlab.runs.recipe_file import recipe_in
from vitlab.runs.run_folder import RunFolder
from vitlab.training.resume import MAY_CHANGE
from vitlab.training.state import State
from vitlab.training.step import Trainer

QUICK = TINY | {"steps": 12, "batch": 32, "lr": 1e-3, "test_every": 1.0}
HOST = Host(workers=0, check_duplicates="no", checkpoint_every=0)


def started(folder: Path, stop: int = 5) -> None:
    """A run that was interrupted after some steps."""
    with asked_to_stop(stop), suppress(KeyboardInterrupt):
        vitlab.train(vitlab.recipe("digits", **QUICK), folder, host=HOST)


def resumed(folder: Path, change: bool = True, **how: Any) -> Any:
    recipe = vitlab.recipe("digits", **QUICK | how)
    return vitlab.train(recipe, folder, resume=True, change=change, host=HOST)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return vitlab.load(folder).state_dict()


def test_another_rate_holds_from_the_next_step_on_and_is_written_down(tmp_path: Path) -> None:
    started(tmp_path / "run")
    rates: list[tuple[int, float, float]] = []

    def note(trainer: Trainer, state: State, batch: object) -> None:
        group = state.optimizer.param_groups[0]
        rates.append((state.step, float(group["lr"]), group["weight_decay"]))

    flat = {"warmup": 0.0, "schedule": "constant"}
    with each_step(after=note):
        resumed(tmp_path / "run", lr=2e-4, weight_decay=0.3, drop_path=0.1, **flat)
    assert [step for step, *_ in rates] == [*range(6, 13)]
    assert {lr for _, lr, _ in rates} == {2e-4}
    assert {decay for *_, decay in rates} == {0.3}
    tables = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert tables["optimizer"]["lr"] == 2e-4
    changes = {each["option"]: each for each in tables["changes"]}
    assert changes["lr"] == {"step": 5, "option": "lr", "before": 1e-3, "after": 2e-4}
    assert set(changes) == {"lr", "weight_decay", "drop_path", *flat}
    again = recipe_in(tmp_path / "run")
    assert again is not None
    assert again.optimizer.lr == 2e-4


def test_it_goes_on_to_the_same_bits_afterwards(tmp_path: Path) -> None:
    """Changed after step 5, then killed and resumed without a word, or not killed."""
    for name in ("whole", "cut"):
        started(tmp_path / name)
    resumed(tmp_path / "whole", lr=2e-4)
    with killed_before(8), suppress(KeyboardInterrupt):
        resumed(tmp_path / "cut", lr=2e-4)
    resumed(tmp_path / "cut", lr=2e-4)  # the same command again, as a scheduler would
    mine, other = weights(tmp_path / "cut"), weights(tmp_path / "whole")
    assert all(torch.equal(mine[name], other[name]) for name in other)
    assert len(RunFolder(tmp_path / "cut").tables["changes"]) == 1


def test_changed_after_the_last_checkpoint_was_lost(tmp_path: Path) -> None:
    started(tmp_path / "run")
    with killed_before(6), suppress(KeyboardInterrupt):
        resumed(tmp_path / "run", lr=2e-4)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    resumed(tmp_path / "run", change=False, lr=2e-4)
    changes: Any = RunFolder(tmp_path / "run").tables["changes"]
    assert [each["step"] for each in changes] == [0]
    assert vitlab.load(tmp_path / "run").config.classes == 10


def test_what_may_not_change(tmp_path: Path) -> None:
    started(tmp_path / "run", 2)
    before = (tmp_path / "run" / "run.toml").read_bytes()
    with pytest.raises(RunError, match=r"with lr=0.001, not 0.1: .* or pass --change to continue"):
        resumed(tmp_path / "run", change=False, lr=0.1)
    for how, text in (
        ({"batch": 16}, "batch=32, not 16, and batch cannot change within a run: leave the"),
        ({"layer_scale": 0.1}, "layer_scale=0.0, not 0.1, and layer_scale cannot change"),
        ({"seed": 4}, "seed=0, not 4, and seed cannot change"),
        ({"optimizer": "lamb"}, "optimizer=adamw, not lamb, and optimizer cannot change"),
    ):
        with pytest.raises(RunError, match=text):
            resumed(tmp_path / "run", lr=0.1, **how)
    assert (tmp_path / "run" / "run.toml").read_bytes() == before
    resumed(tmp_path / "run", change=False)
    with pytest.raises(RunError, match=r"is finished, with lr=0.001, not 0.1: choose another"):
        resumed(tmp_path / "run", lr=0.1)
    for table, names in MAY_CHANGE.items():
        part = vitlab.recipe("digits")
        known = hints(type(part if table == "recipe" else getattr(part, table)))
        assert set(names) <= set(known)


def test_the_advice_after_a_divergence_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("train", "digits", "--out", str(tmp_path / "run"), "--model", TINY["model"])
    more = ("--steps", "14", "--batch", "32", "--lr", "1e30", "--clip", "0", "--warmup", "0")
    code, _, err = call(capsys, *run, *more, "--check-duplicates", "no")
    assert code == 2
    assert "try a lower --lr, as with --resume --change --lr 0.001" in err.splitlines()[-1]
    code, _, err = call(capsys, *run[:4], "--resume", "--lr", "1e-3")
    assert (code, "or pass --change to continue with it" in err) == (2, True)
    code, out, err = call(capsys, *run[:4], "--resume", "--change", "--lr", "1e-3", "--json")
    assert code == 0, err
    assert "lr=1e+30 until step 0, lr=0.001 from there on" in err
    assert json.loads(out)["rollbacks"] == 0
    assert json.loads(out)["accuracy"] > 0.1
    code, _, err = call(capsys, *run, "--change")
    assert (code, "change=True applies only with resume" in err) == (2, True)


def test_other_functions_of_the_users_own(tmp_path: Path) -> None:
    with asked_to_stop(2), suppress(KeyboardInterrupt):
        vitlab.train(vitlab.recipe("digits", **QUICK), tmp_path / "run", host=HOST)
    recipe = vitlab.recipe("digits", **QUICK)
    vitlab.train(recipe, tmp_path / "run", resume=True, change=True, host=HOST, transform=darker)
    options = [each["option"] for each in RunFolder(tmp_path / "run").tables["changes"]]
    assert options == ["transform", "transform_sha256"]


def darker(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return images // 2
