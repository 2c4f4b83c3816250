"""Sweeps: the grid, the choice, the last run; interrupted, resumed, refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import BRIEF, LIGHT, SHOWN, call
from steps import asked_to_stop
from training.kept import weights
from vitlab.errors import OptionError, RunError
from vitlab.experiments.sweep import PaperData, best_of, default_grid, grid_of, paper_data
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.stop import Interrupted

TINY = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/4", "epochs": 1, "batch": 256}
FLAGS = [f"--{key}={value}" for key, value in TINY.items()] + ["--workers", "0"]
HOST = Host(workers=0, effort=BRIEF)


def recipe(**more: object) -> Recipe:
    return vitlab.recipe("digits", **TINY | {"clip": 0.0, "warmup": 0.0} | more)


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    """A finished sweep over two rates, one of which diverges."""
    out = tmp_path_factory.mktemp("sweep") / "run"
    host = Host(workers=0, effort=SHOWN)
    return vitlab.sweep(recipe(), out, [1e30, 0.003], share=0.2, host=host, command="typed words")


def test_the_best_rate_is_trained_on_all_images_and_the_table_is_kept(swept: vitlab.Run) -> None:
    table = swept.metrics["sweep"]
    assert (table["chosen"], table["share"]) == ({"lr": 0.003}, 0.2)
    assert [(row["lr"], row["diverged"]) for row in table["runs"]] == [(0.003, False), (1e30, True)]
    final = RunFolder(swept.folder)
    assert (final.recipe.optimizer.lr, final.recipe.data.dev_share) == (0.003, 0.0)
    trial = RunFolder(table["runs"][0]["run"])
    assert trial.path == swept.folder / "sweep" / "lr-0.003"
    assert trial.recipe.data.dev_share == 0.2
    assert 240 < table["runs"][0]["images"] < 330  # about a fifth of 1,438, by their bytes
    assert table["runs"][0]["accuracy"] == trial.result()["accuracy"]
    assert swept.metrics["images"] == 359
    assert json.loads((swept.folder / "sweep" / "campaign.json").read_text())["result"]["best"] == 0
    for page in (swept.folder / "report.html", swept.folder / "sweep" / "report.html"):
        text = page.read_text()
        assert 'class="chosen"' in text
        assert "diverged" in text
        assert "typed words" in text
    assert vitlab.load(swept.folder).config.name == swept.model.config.name


def test_a_finished_sweep_is_told_again(
    swept: vitlab.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(swept.folder, tmp_path / "copy")
    before = {file: file.stat().st_mtime_ns for file in copy.rglob("model.safetensors")}
    code, out, err = call(capsys, "train", "--out", str(copy), "--resume")
    assert (code, "diverged" in out, "accuracy" in out) == (0, True, True), err
    again = vitlab.sweep(recipe(), copy, [1e30, 0.003], share=0.2, resume=True, host=HOST)
    assert again.metrics["sweep"]["chosen"] == {"lr": 0.003}
    assert again.metrics["nll"] == swept.metrics["nll"]
    assert {file: file.stat().st_mtime_ns for file in copy.rglob("model.safetensors")} == before
    said = capsys.readouterr().err
    assert "lr 1e+30 diverged" in said
    assert f"lr 0.003: accuracy {again.metrics['sweep']['runs'][0]['accuracy']:.1%}" in said
    for more, words in (
        ({"grid": [0.003]}, "was started with grid=[0.003, 1e+30], not [0.003]: leave the option"),
        ({"share": 0.3}, "was started with share=0.2, not 0.3"),
        ({"resume": False}, "already contains a sweep: pass resume=True to continue"),
    ):
        given = {"grid": [1e30, 0.003], "share": 0.2, "resume": True} | more
        with pytest.raises(RunError) as caught:
            vitlab.sweep(recipe(), copy, **given, host=LIGHT)
        assert words in str(caught.value)
    with pytest.raises(RunError, match=r"was started with epochs=1\.0, not 2\.0"):
        vitlab.sweep(recipe(epochs=2), copy, [1e30, 0.003], share=0.2, resume=True, host=LIGHT)


def test_stopped_anywhere_it_goes_on_and_repeats_nothing(
    swept: vitlab.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At last from the command line, with nothing but the folder."""
    how: dict[str, Any] = {"share": 0.2, "resume": True, "host": HOST}
    for steps in (2, 10):  # within the first run, and within the last
        with pytest.raises(Interrupted, match="pass --resume to continue"), asked_to_stop(steps):
            vitlab.sweep(recipe(), tmp_path, [0.003, 1e30], **how)
    code, out, err = call(capsys, "train", "--out", str(tmp_path), "--resume", "--json")
    assert code == 0, err
    for name in (".", "sweep/lr-0.003"):
        assert weights(tmp_path / name) == weights(swept.folder / name)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line)["step"] for line in lines if '"train"' in line]
        assert steps == sorted(set(steps))
    assert json.loads(out)["sweep"]["chosen"] == {"lr": 0.003}
    assert json.loads(out)["nll"] == swept.metrics["nll"]


def test_any_option_can_be_chosen_with_the_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "digits", *FLAGS, "--sweep", "3e-3", "--sweep-more", "label_smoothing=0,0.1"]
    words += ["weight-decay=0.2", "dropout=0.1", "rand-ops=1"]
    words += ["--seeds", "2", "--json", "--out", str(tmp_path / "run")]
    code, out, err = call(capsys, *words)
    assert code == 0, err
    found = json.loads(out)
    tried = [(row["label_smoothing"], row["weight_decay"]) for row in found["sweep"]["runs"]]
    assert tried == [(0, 0.2), (0.1, 0.2)]
    best = found["sweep"]["runs"][found["sweep"]["best"]]
    chosen = {"lr": 3e-3, "label_smoothing": best["label_smoothing"], "weight_decay": 0.2}
    chosen |= {"dropout": 0.1, "rand_ops": 1}
    assert found["sweep"]["chosen"] == chosen
    last = RunFolder(Path(found["runs"][1]["run"])).recipe
    assert last.objective.label_smoothing == best["label_smoothing"]
    assert (last.optimizer.weight_decay, last.model.dropout) == (0.2, 0.1)
    assert last.augment.rand_ops == 1
    code, out, err = call(capsys, "train", "--out", str(tmp_path / "run"), "--resume", "--json")
    assert (code, json.loads(out)["sweep"]) == (0, found["sweep"]), err


def test_all_diverged_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "digits", *FLAGS, "--clip", "0", "--warmup", "0", "--sweep-share", "0.2"]
    code, out, err = call(capsys, *words, "--out", str(tmp_path / "a"), "--sweep", "1e29", "1e30")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "vitlab train: all 2 runs of the sweep diverged: try lower rates, such as --sweep 3.3e+27 "
        "1e+28, and another --out"
    )


def test_ties_go_to_the_lower_rate() -> None:
    rows = [{"lr": 1, "accuracy": 0.5}, {"lr": 2, "accuracy": 0.7}, {"lr": 3, "accuracy": 0.7}]
    assert best_of(rows) == rows[1]
    assert best_of([{"map": 0.2}, {}, {"map": 0.3}]) == {"map": 0.3}
    assert grid_of([0.3, 0.1, 0.3]) == [{"lr": 0.1}, {"lr": 0.3}]
    pairs = grid_of([0.3, 0.1], {"dropout": [0.1, 0], "layer_decay": [1]})
    assert [tuple(each.values()) for each in pairs] == [
        (0.1, 0, 1), (0.1, 0.1, 1), (0.3, 0, 1), (0.3, 0.1, 1),
    ]  # fmt: skip


def test_the_papers_grids() -> None:
    most, large = [0.001, 0.003, 0.01, 0.03], [0.003, 0.01, 0.03, 0.06]
    for data, classes, share, rates in (
        ("uoft-cs/cifar10", 10, 0.02, most),
        ("data/CIFAR-100/", 100, 0.02, most),
        ("timm/oxford-iiit-pet", 37, 0.1, most),
        ("oxford_flowers102", 102, 0.1, most),
        ("ILSVRC/imagenet-1k", 1000, 0.01, large),
    ):
        known = paper_data(data, classes)
        assert known is not None
        assert known.share == share
        sgd = vitlab.recipe("small", data, optimizer="sgd")
        assert [point["lr"] for point in default_grid(sgd, known)] == rates
    for data, classes in (("cifar10", 100), ("imagenette", 10), ("imagenet", 100), ("my-pets", 37)):
        assert paper_data(data, classes) is None, "other data is not taken for the papers'"


def test_grids_around_a_recipe_with_adamw() -> None:
    plain = default_grid(vitlab.recipe("small", "x", lr=1e-3), None)
    assert plain == [{"lr": 0.0003}, {"lr": 0.001}, {"lr": 0.003}]
    both = default_grid(vitlab.recipe("small", "x", lr=5e-4, layer_decay=0.75), PaperData("", 1, 1))
    assert {point["layer_decay"] for point in both} == {0.65, 0.75, 0.85}  # BEiT's
    assert len(both) == 9
    assert both[0] == {"lr": 0.00015, "layer_decay": 0.65}
    steep = default_grid(vitlab.recipe("small", "x", layer_decay=0.2), None)
    assert min(point["layer_decay"] for point in steep) > 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda r: vitlab.sweep(r, grid=[], host=LIGHT),
            "the grid is empty: name learning rates, such as grid=(",
        ),
        (lambda r: vitlab.sweep(r, grid=[0.1, -1], host=LIGHT), "lr must be above 0, not -1"),
        (
            lambda r: vitlab.sweep(r, grid=[1], layer_decays=[2], host=LIGHT),
            "layer_decay must be above 0",
        ),
        (
            lambda r: vitlab.sweep(r, share=1.5, host=LIGHT),
            "share must be above 0 and below 1, not 1.5",
        ),
        (
            lambda r: vitlab.sweep(r.changed(fold="1/2"), host=LIGHT),
            "a sweep holds images out by itself",
        ),
        (
            lambda r: vitlab.sweep(r.changed(optimizer="sgd"), host=LIGHT),
            "the ViT paper has no grid for digits: name the rates, such as grid=(0.001, 0.003, ",
        ),
        (
            lambda r: vitlab.sweep(r.changed(optimizer="muon"), host=LIGHT),
            "there is no default grid for optimizer=muon: name the rates, such as grid=(0.00067, ",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_written(
    call: object, words: str, tmp_path: Path
) -> None:
    here = Path.cwd()
    with pytest.raises(OptionError) as caught:
        call(recipe())
    assert words in str(caught.value)
    assert "sweep_" not in str(caught.value), "which is no argument of vitlab.sweep"
    assert list(here.iterdir()) == []


def test_a_folder_with_something_else_is_left_alone(digits_run: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="classes=3, but digits has 10 classes"):
        vitlab.sweep(recipe(classes=3), tmp_path / "run", [0.1], host=HOST)
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match="already contains a run without a sweep"):
        vitlab.sweep(recipe(), digits_run, [0.1], resume=True, host=LIGHT)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="exists and contains no run"):
        vitlab.sweep(recipe(), tmp_path / "mine", [0.1], host=LIGHT)
