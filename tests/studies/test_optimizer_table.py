"""The study of optimizers, a short one."""

import json
from pathlib import Path

import pytest

import vitlab
from vitlab.cli import main
from vitlab.recipes.choices import Optimization
from vitlab.recipes.recipe import Host
from vitlab.studies.optimizer_table import ENTRIES, HEAD, cost, final_loss, study, table

TINY = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/4", "steps": 3, "batch": 256}


def test_every_optimizer_from_the_same_start(tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", **TINY)
    result = study(recipe, tmp_path, Host(), only=("adamw", "adafactor", "schedule-free"))
    rows = {row["optimizer"]: row for row in result["rows"]}
    assert rows["adamw"]["floats"] == pytest.approx(2, abs=0.02)
    assert (rows["adamw"]["claimed"], rows["adafactor"]["claimed"]) == ("2", "O(1)")
    assert rows["adafactor"]["floats"] < 0.5
    assert all(0 <= row["accuracy"] <= 1 and row["step_ms"] > 0 for row in rows.values())
    lines = table(result)
    assert {len(line) for line in lines} == {len(HEAD)}
    starts = [
        json.loads((tmp_path / f"{name}-1" / "metrics.jsonl").read_text().splitlines()[0])
        for name in rows
    ]
    assert {start["loss"] for start in starts} == {starts[0]["loss"]}  # before the first step
    before = {row["optimizer"]: row["nll"] for row in result["rows"]}
    again = study(recipe, tmp_path, Host(), only=tuple(rows))  # nothing is trained anew
    assert {row["optimizer"]: row["nll"] for row in again["rows"]} == before


def test_a_grid_is_decided_by_the_training_loss_and_what_diverges_is_told(tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", **TINY | {"clip": 0.0, "warmup": 0.0})
    result = study(recipe, tmp_path / "a", Host(), only=("sgd",), lr_grid=(0.1, 1e30))
    assert result["rows"][0]["lr"] == pytest.approx(0.1 * 25 * 2e-3)
    result = study(recipe, tmp_path / "b", Host(), only=("sgd",), lr_grid=(1e30,))
    assert result["rows"][0]["note"] == "diverged"
    assert "diverged" in table(result)[0]


def test_every_entry_is_a_recipe_and_has_a_cost() -> None:
    model = vitlab.create(TINY["model"], 10, 8)
    for name, entry in ENTRIES.items():
        vitlab.recipe("digits", **entry.choices)
        own = {k: v for k, v in entry.choices.items() if k in Optimization.__dataclass_fields__}
        update, held = cost(model, Optimization(**own))
        assert update > 0, name
        assert held > 0, name


def test_a_shorter_study_warms_up_in_proportion() -> None:
    recipe = vitlab.recipe("digits")
    assert recipe.lasting(6).schedule.warmup == pytest.approx(0.5)
    assert recipe.lasting(6).epochs == 6


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["study", "optimizers", "--epochs", "0.5", "--model", str(TINY["model"])]
    words += ["--only", "muon", "--out", str(tmp_path), "--json"]
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert not stop.value.code
    assert json.loads(capsys.readouterr().out)["rows"][0]["optimizer"] == "muon"
    for more, says in (
        (["--only", "x"], "unknown row 'x': choose from sgd"),
        (["--lr-grid", "0"], "lr_grid must be above 0, not (0,)"),
        (["--betas", "0.9", "0.9"], "the study optimizers chooses betas itself: leave it out"),
        (["--lr-low", "1e-3"], "lr_low=0.001 applies only with name=lr"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["study", "optimizers", *more])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert says in error
        assert len(error.splitlines()) == 1


def test_the_training_loss_is_that_of_many_batches() -> None:
    """Lines every 4 steps, and one at the end: the last tenth of 40 steps is steps 37 to 40."""
    lines = [{"step": step, "loss": float(step)} for step in (*range(4, 41, 4), 41)]
    assert final_loss(lines) == pytest.approx((4 * 40 + 1 * 41) / 5)
    every = [{"step": step, "loss": 1.0 if step > 90 else 9.0} for step in range(1, 101)]
    assert final_loss(every) == 1.0
