"""What a run remembers is found again: from elsewhere, after a move, spelled otherwise, or said."""

import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import vitlab
from conftest import BRIEF, call, photo_folder
from made_models import equal, noisy, tiny
from steps import asked_to_stop
from vitlab.errors import DataError, RunError, WeightsError
from vitlab.evaluation.run_predictions import examine
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder

HOST = Host(device="cpu", workers=0, report="no", check_duplicates="no", effort=BRIEF)
HOW: dict[str, Any] = {
    "tune": "lora", "head_start": "zero", "epochs": 2, "batch": 8, "lr": 0.05, "warmup": 0,
    "host": HOST, "quiet": True, "precision": "fp32",
}  # fmt: skip


def tuned(out: str | Path = "runs/lora", data: str = "photos", weights: str = "base", **how: Any):
    return vitlab.finetune(data, weights, out, **HOW | how)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images and a model, in which commands are typed; and one beside it."""
    place = tmp_path / "here"
    photo_folder(place / "photos", {"blue": 8, "green": 8, "red": 8}, 16, 16)
    vitlab.save(noisy(tiny()), place / "base")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def run(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with LoRA, and another working folder than it was started in."""
    tuned()
    monkeypatch.chdir(work.parent / "elsewhere")
    return work / "runs" / "lora"


def spellings(work: Path) -> dict[str, tuple[str, str]]:
    """The same place as typed in another folder."""
    (work.parent / "link").symlink_to(work)
    away = os.path.relpath(work, work.parent / "elsewhere")
    starts = {
        "absolute": f"{work}/", "relative": f"{away}/", "through a link": "../link/",
        "not straight": f"{away}/runs/../", "from home": "~/here/", "as then": "",
    }  # fmt: skip
    return {name: (f"{each}photos/", f"{each}base") for name, each in starts.items()}


def test_resuming_compares_places_not_spellings(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tuned(work / "runs" / "whole").model
    with asked_to_stop(2), pytest.raises(KeyboardInterrupt):
        tuned()
    (work / "run").mkdir()
    monkeypatch.chdir(work.parent / "elsewhere")
    for name, (data, weights) in spellings(work).items():
        copy = work / "runs" / "copy"
        shutil.copytree(work / "runs" / "lora", copy)
        before = (copy / "run.toml").read_text()
        found = tuned(copy, data.rstrip("/") if not data[:-7] else data, weights, resume=True)
        assert equal(found.model, whole), name
        assert (copy / "run.toml").read_text() == before, name
        shutil.rmtree(copy)


def test_the_command_goes_on_in_another_folder(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with asked_to_stop(2), pytest.raises(KeyboardInterrupt):
        tuned()
    monkeypatch.chdir(work.parent / "elsewhere")
    out = ("--out", str(work / "runs" / "lora"), "--resume", "--workers", "0")
    for more in ((), ("photos", "--from", "base")):
        code, _, err = call(capsys, "finetune", *more, *out)
        assert code == 0, err


def test_a_base_that_was_renamed_is_taken_by_its_fingerprint(work: Path) -> None:
    with asked_to_stop(2), pytest.raises(KeyboardInterrupt):
        tuned()
    Path("base").rename("other")
    line = r"no such file or folder: base; runs/lora was started with it: .*(--from|weights=)"
    with pytest.raises(WeightsError, match=line):
        tuned(resume=True)
    Path("photos").rename("pictures")
    with pytest.raises(DataError, match=r"photos; runs/lora was started with it: .*DATA"):
        tuned(resume=True)
    Path("pictures").rename("photos")
    tuned(weights="other", resume=True)
    tables = tomllib.loads(Path("runs/lora/run.toml").read_text())
    assert tables["start"]["weights"] == "other"
    assert tables["nearby"] == {"data": "../../photos", "weights": "../../other"}
    assert "changes" not in tables


def test_a_ring_of_links_in_its_place_is_passed_over(work: Path) -> None:
    """Python says so of `Path.resolve` until 3.12, and no longer from 3.13 on."""
    with asked_to_stop(2), pytest.raises(KeyboardInterrupt):
        tuned()
    Path("base").rename("other")
    Path("base").symlink_to("base")
    with pytest.raises(WeightsError, match="no such file or folder: base"):
        tuned(resume=True)
    tuned(weights="other", resume=True)


def test_another_model_in_its_place_is_refused_or_passed_over(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with asked_to_stop(2), pytest.raises(KeyboardInterrupt):
        tuned()
    base = vitlab.load("base")
    base.get_parameter("norm.bias").data[0] += 1e-3
    vitlab.save(base, "../elsewhere/base")
    monkeypatch.chdir(work.parent / "elsewhere")
    where = str(work / "photos")
    tuned(work / "runs" / "lora", where, resume=True, quiet=False)
    line = f"base is not what {work}/runs/lora was started with, but {work}/base is: it is used"
    assert line in capsys.readouterr().err
    shutil.rmtree(work / "base")
    shutil.copytree("base", work / "base")
    (work / "runs" / "lora" / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match=r"base has changed since .*runs/lora was started"):
        tuned(work / "runs" / "lora", where, resume=True)
    photo_folder(Path("others"), {"blue": 8, "green": 8, "red": 7}, 16, 16)
    with pytest.raises(RunError, match=r"was started with data=photos, not others: leave"):
        tuned(work / "runs" / "lora", "others", resume=True)


def test_an_adapter_is_exported_wherever_the_run_is_read(run: Path) -> None:
    model = vitlab.load(run)
    folder = vitlab.save(model, "adapter", to="peft")
    near = vitlab.load(folder, base=run.parents[1] / "base")
    for name, tensor in near.state_dict().items():
        assert (tensor - model.state_dict()[name]).abs().max() < 1e-5
    moved = run.parents[1].rename("moved")
    vitlab.save(vitlab.load(moved / "runs" / "lora"), "again", to="peft")
    assert equal(vitlab.load(moved / "runs" / "lora" / "delta.safetensors"), model)
    Path(moved / "base").rename(moved / "runs" / "base")  # its last name, beside the run
    vitlab.save(vitlab.load(moved / "runs" / "lora" / "model"), "beside", to="peft")
    assert equal(vitlab.load(moved / "runs" / "lora" / "delta.safetensors"), model)


def test_a_base_that_is_not_there_is_named_with_the_option(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = Path(shutil.copytree(run, "alone/lora"))
    for words in (
        ("export", str(alone), "--to", "peft", "--out", "adapter"),
        ("predict", str(alone / "delta.safetensors"), str(run.parents[1] / "photos")),
    ):
        code, _, err = call(capsys, *words)
        assert code == 2
        assert str(alone) in err
        assert "base" in err
        assert "--base (Python: base=…" in err
        code, _, err = call(capsys, *words, "--base", str(run.parents[1] / "base"))
        assert code == 0, err
    other = vitlab.load(run.parents[1] / "base")
    other.get_parameter("norm.bias").data[0] += 1e-3
    vitlab.save(other, "alone/base")
    code, _, err = call(capsys, "export", str(alone), "--to", "peft", "--out", "b")
    assert code == 2
    assert "is another model than the one that alone/lora was tuned from" in err
    code, _, err = call(capsys, "predict", str(alone / "delta.safetensors"), "x.png")
    assert code == 2
    assert not Path("b").exists()


def test_a_run_that_kept_its_fitted_head_says_that_there_is_no_adapter(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = vitlab.load("base", classes=3)
    model.get_parameter("head.classify.weight").data.normal_()
    model.provenance |= {"head_start": {"images": 8}, "base": "base", "tune": "lora"}
    vitlab.save(model, "kept")
    code, _, err = call(capsys, "export", "kept", "--to", "peft", "--out", "adapter")
    assert code == 2
    for words in (
        "kept has no LoRA to export", "fitted to the base's features and kept",
        "--to vitlab, timm or transformers writes base and classifier", "--head-start zero",
    ):  # fmt: skip
        assert words in err


def test_the_data_of_a_run_is_opened_where_it_was(run: Path) -> None:
    """Beside other images of the same name; and of an older folder, which does not say where."""
    photo_folder(Path("photos"), {"blue": 4, "green": 5, "red": 6}, 16, 16)
    (run / "predictions.safetensors").unlink()
    first = examine(RunFolder(run), device="cpu", workers=0)
    tables = tomllib.loads((run / "run.toml").read_text())
    assert tables.pop("nearby") == {"data": "../../photos", "weights": "../../base"}
    (run / "run.toml").write_text(tomli_w.dumps(tables))
    (run / "predictions.safetensors").unlink()
    again = examine(RunFolder(run), device="cpu", workers=0)
    assert (first.keys == again.keys).all()
    vitlab.save(vitlab.load(run), "adapter", to="peft")


def test_a_probe_goes_on_in_another_folder(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = vitlab.probe("photos", "base", work / "runs" / "probe", host=HOST, quiet=True)
    monkeypatch.chdir(work.parent / "elsewhere")
    where = "../here/photos/", "~/here/base"
    again = vitlab.probe(*where, work / "runs" / "probe", host=HOST, resume=True, quiet=True)
    assert again.metrics == first.metrics
    photo_folder(Path("others"), {"blue": 8, "green": 8, "red": 7}, 16, 16)
    with pytest.raises(RunError, match="was started with data=photos, not others"):
        vitlab.probe("others", where[1], work / "runs" / "probe", host=HOST, resume=True)


def test_a_recipe_of_a_run_leads_to_its_weights(run: Path) -> None:
    recipe = RunFolder(run).recipe_here
    assert (recipe.data.data, recipe.start.weights) == (
        str(run.parents[1] / "photos"),
        str(run.parents[1] / "base"),
    )
    assert RunFolder(run).recipe.start.weights == "base"


def test_several_runs_go_on_in_another_folder(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("finetune", "photos", "--from", "base", "--seeds", "2", "--steps", "1", "--batch", "8",
             "--head-start", "zero", "--out", str(work / "runs" / "seeds"), "--workers", "0",
             "--report", "no")  # fmt: skip
    assert call(capsys, *words)[0] == 0
    monkeypatch.chdir(work.parent / "elsewhere")
    code, _, err = call(capsys, *words, "--resume")
    assert code == 0, err
    there = [f"../here/{each}" if each in ("photos", "base") else each for each in words]
    code, _, err = call(capsys, *there, "--resume")
    assert code == 0, err
    vitlab.save(tiny(7), "other")
    code, _, err = call(capsys, *there[:3], "other", *there[4:], "--resume")
    assert code == 2
    assert "was started with weights=base, not other" in err
