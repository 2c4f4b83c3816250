"""The study of optimizers: its rows, what an update costs, and short runs."""

import json
from pathlib import Path
from typing import Any

import pytest

import vitlab
from vitlab.cli import main
from vitlab.errors import PackageError
from vitlab.recipes.choices import Optimization
from vitlab.recipes.recipe import Host
from vitlab.studies.base import Base, options_of, small, table
from vitlab.studies.claims import judged
from vitlab.studies.grid import best_of, cells_of, tried
from vitlab.studies.papers import advice, claims_of
from vitlab.studies.papers.advice import SOME, update_cost
from vitlab.studies.papers.advice import optimizer_arms as arms
from vitlab.studies.step_cost import final_loss
from vitlab.studies.study import check_packages

TINY = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
HOST = Host(device="cpu", workers=0, check_duplicates="no")


TRIED = table("optimizers")


def run(folder: Path, only: tuple[str, ...], rates: tuple[float, ...] = ()) -> dict[str, Any]:
    recipe = small("digits", TINY).changed(batch=256, clip=0.0)
    how: dict[str, Any] = {"epochs": 0.1, "seeds": 1, "only": only, "lr_grid": rates, "at_once": 1}
    return vitlab.study("optimizers", out=folder, recipe=recipe, host=HOST, **how)


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
    model, floats = vitlab.create(TINY, 10, 8), {}
    for name in TRIED:
        options = options_of("optimizer-options", name).items()
        own = {k: v for k, v in options if k in Optimization.__dataclass_fields__}
        found = update_cost(model, Optimization(**own))
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


def test_short_runs_leave_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "RATES", ())
    monkeypatch.setitem(advice.SMALL_RESNETS, "optimizers", "BiT-R(1)x1")
    rows = ("adamw", "schedule-free", "resnet-shampoo")
    result = run(tmp_path, rows)
    assert [row["name"] for row in result["rows"]] == list(rows)
    starts = [
        json.loads((tmp_path / f"{name}-seed-0" / "metrics.jsonl").read_text().splitlines()[0])
        for name in rows[:2]
    ]
    assert starts[0]["loss"] == starts[1]["loss"]  # the same start and batches
    assert result["table"][0][:4] == ["ViT", "adamw", "2", "the best at usual scale"]
    text = (tmp_path / "results.md").read_text()
    assert (tmp_path / "picture.svg").is_file()
    assert "(picture.svg)" in text
    assert (tmp_path / "report.html").read_text().count('class="plot"') == 1


def test_what_diverges_is_not_chosen_and_is_told(tmp_path: Path) -> None:
    rows = [{"accuracy": 0.1, "rate": 0.1}, {"diverged": "it did", "rate": 1e30}]
    assert best_of(tried(rows)) == 0.1
    result = run(tmp_path, ("lamb",), (1e29, 1e30))
    assert result["rows"][0]["lr"] == pytest.approx(1e26 * 5 * 2e-3)  # the smallest, three beyond
    assert result["rows"][0]["edge"] == -1
    assert result["table"][0][-2:] == ["1e+24 ‡", "diverged"]
    assert "‡ the smallest" in (tmp_path / "results.md").read_text()


def test_rows_of_missing_packages_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = tuple(arms(Base(small("digits"))))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PackageError) as refused:
        run(tmp_path / "x", ("adamw", "lars"))
    says = str(refused.value)
    assert says.startswith("the row lars needs the package pytorch_optimizer: pip install")
    assert says.endswith("or name other rows with --only")
    assert not (tmp_path / "x").exists()
    check_packages([arm for arm in every if arm.name in ("sgd", "adam", "adamw", "shampoo")])
    with pytest.raises(PackageError, match="the row soap needs"):
        check_packages([arm for arm in every if arm.name == "soap"])


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["study", "optimizers", "--epochs", "0.1", "--model", TINY, "--seeds", "1"]
    words += ["--only", "muon", "--lr-grid", "0.5", "1", "--out", str(tmp_path), "--json"]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--at-once", "1"])
    assert not stop.value.code
    assert json.loads(capsys.readouterr().out)["rows"][0]["name"] == "muon"
    assert (tmp_path / "muon-lr-0.5").is_dir()
    for more, says in (
        (["--only", "x"], "unknown row 'x': choose from sgd"),
        (["--lr-grid", "0"], "lr_grid must be above 0, not (0,)"),
        (["--betas", "0.9", "0.9"], "the study optimizers chooses betas itself: leave it out"),
        (["--steps", "5"], "--steps differs from row to row: use --epochs"),
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
