"""The study of optimizers: its rows, what it measures, its pictures, and a short one of each."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from vitlab.cli import main
from vitlab.data.learning import open_to_learn
from vitlab.errors import PackageError
from vitlab.models.cost import cost
from vitlab.recipes.choices import Optimization
from vitlab.recipes.recipe import Host
from vitlab.studies.advice import loss_geometry, optimizer_study
from vitlab.studies.advice.loss_geometry import ARRAYS, geometry_drawings
from vitlab.studies.advice.optimizer_study import (
    CURVED,
    STUDY,
    TRIED,
    arms,
    drawings,
    measure,
    update_cost,
)
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import Trained
from vitlab.studies.grid.jobs import chosen, jobs_of
from vitlab.studies.grid.optimizer_packages import check_packages
from vitlab.studies.grid.paper_claims import judged
from vitlab.studies.grid.runs.one_run import final_loss
from vitlab.studies.grid.study_campaign import Asked, Campaign
from vitlab.studies.small_recipe import small
from vitlab.transfer.campaign_folder import CampaignFolder

TINY = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
HOST = Host(device="cpu", workers=0, check_duplicates="no")


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loss be looked at with few images and products."""
    for name, few in {"IMAGES": 20, "HESSIAN_IMAGES": 10, "STEPS": 2, "POINTS": 3}.items():
        monkeypatch.setattr(loss_geometry, name, few)
    monkeypatch.setattr(optimizer_study, "SMALL_RESNET", "BiT-R(1)x1")


def campaign(folder: Path, only: tuple[str, ...], rates: tuple[float, ...] = ()) -> Campaign:
    asked = Asked("optimizers", epochs=0.1, seeds=1, only=only, rates=rates, at_once=1)
    recipe = small("digits", TINY).changed(batch=256, clip=0.0)
    return Campaign(STUDY, Base(recipe), asked, CampaignFolder(folder), HOST)


def test_models_of_small_budgets_cost_the_same() -> None:
    found = {arm.name: arm.recipe.model.config(classes=10) for arm in arms(Base(small("given")))}
    macs = [cost(found[name]).macs for name in ("adamw", "hybrid-adamw", "resnet-adamw")]
    assert max(macs) / min(macs) < 1.04


def test_every_row_chooses_its_learning_rate_on_held_out_training_images() -> None:
    every = arms(Base(small("digits")))
    assert [arm.name for arm in every[: len(TRIED)]] == list(TRIED)
    assert len(every) == len(TRIED) + 2 * len(CURVED)
    jobs = jobs_of(every, (0, 1))
    assert sum(job.rate > 0 for job in jobs) == 3 * len(every)
    tried = {job.name: job.recipe({}, 1.0, Path()) for job in jobs if job.rate}
    assert {recipe.data.dev_share for recipe in tried.values()} == {0.1}
    assert tried["lars-lr-0.3"].optimizer.lr == pytest.approx(0.3)


def test_every_row_has_a_cost_and_the_state_that_is_known_of_it() -> None:
    model, floats = vitlab.create(TINY, 10, 8), {}
    for name, tried in TRIED.items():
        own = {k: v for k, v in tried.choices.items() if k in Optimization.__dataclass_fields__}
        found = update_cost(model, Optimization(**own))
        assert found["update_ms"] > 0, name
        floats[name] = found["floats"]
    assert floats["adamw"] == floats["adamw+sam"] == pytest.approx(2, abs=0.02)
    assert floats["sgd"] == pytest.approx(1, abs=0.02)
    assert floats["adafactor"] < 0.5


def test_figures_are_those_of_the_curvature_on_the_same_training_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spectrum ends at the largest eigenvalue: both are of the same half of the images."""
    quick(monkeypatch)
    monkeypatch.setattr(loss_geometry, "STEPS", 12)
    model, splits = vitlab.create(TINY, 10, 8), open_to_learn("digits")
    recipe = small("digits", TINY).changed(rho=0.05)
    with torch.no_grad():
        next(iter(model.parameters())).mul_(2)
    found = measure(Trained(model, recipe, splits, tmp_path, torch.device("cpu")))
    assert found.keys() == {"update_ms", "floats", *loss_geometry.KEPT}
    kept = np.load(tmp_path / ARRAYS)
    assert kept["losses"].shape == (3, 3)
    assert kept["weights"].sum() == pytest.approx(1)
    assert kept["nodes"].max() == pytest.approx(found["hessian_max"], rel=0.02)
    assert len(drawings({"adamw+sam": [tmp_path], "lamb": [tmp_path], "muon": []})) == 2
    assert not geometry_drawings({"ViT": [tmp_path / "none"]})
    recipe = small("digits", TINY).changed(optimizer="lamb")
    other = measure(Trained(model, recipe, splits, tmp_path, torch.device("cpu")))
    assert other.keys() == {"update_ms", "floats"}


def test_sam_helping_the_vit_more_is_a_difference_of_differences() -> None:
    claim = next(each for each in STUDY.claims if "helps the ViT more" in each.text)
    values = {"adamw": (0.70, 0.71), "adamw+sam": (0.76, 0.77)}
    values |= {"resnet-adamw": (0.80, 0.81), "resnet-adamw+sam": (0.82, 0.83)}
    verdict = judged(claim, values)
    assert verdict.difference == pytest.approx((0.06 - 0.02) / 2)
    assert verdict.word == "confirmed"


def test_short_runs_leave_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(optimizer_study, "RATES", ())
    rows = ("adamw", "schedule-free", "resnet-shampoo")
    result = campaign(tmp_path, rows).run()
    assert [row["name"] for row in result["rows"]] == list(rows)
    starts = [
        json.loads((tmp_path / f"{name}-seed-0" / "metrics.jsonl").read_text().splitlines()[0])
        for name in rows[:2]
    ]
    assert starts[0]["loss"] == starts[1]["loss"]  # the same start and batches
    assert result["table"][0][:4] == ["ViT", "adamw", "2", "the best at usual scale"]
    text = (tmp_path / "results.md").read_text()
    for number in ("", "-2", "-3"):
        assert (tmp_path / f"picture{number}.svg").is_file()
        assert f"(picture{number}.svg)" in text
    assert (tmp_path / "report.html").read_text().count('class="plot"') == 3


def test_what_diverges_is_not_chosen_and_is_told(tmp_path: Path) -> None:
    tried = {"a": {"accuracy": 0.1}, "b": {"diverged": "it did"}}
    assert chosen((("a", 0.1), ("b", 1e30)), tried) == 0.1
    result = campaign(tmp_path, ("lamb",), (1e29, 1e30)).run()
    assert result["rows"][0]["lr"] == pytest.approx(1e29 * 5 * 2e-3)  # the smallest
    assert result["table"][0][-1] == "diverged"


def test_rows_of_missing_packages_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = arms(Base(small("digits")))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PackageError) as refused:
        campaign(tmp_path / "x", ("adamw", "lars"))
    says = str(refused.value)
    assert says.startswith("the row lars needs the package pytorch_optimizer: pip install")
    free = says.partition("name other rows: --only ")[2].split()
    assert free[:3] == ["sgd", "adam", "adamw"]
    assert not {"lars", "soap", "schedule-free"} & set(free)
    assert not (tmp_path / "x").exists()
    check_packages([arm for arm in every if arm.name in free], every)
    with pytest.raises(PackageError, match=r'optimizers\]"$'):  # no other rows to advise
        check_packages(every[6:7], every[6:7])


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
