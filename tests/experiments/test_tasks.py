"""Masks, boxes and numbers: sweeps, folds, patience and averages by the task's own figure."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitlab
from conftest import BRIEF, call
from made_scenes import scene_folder
from vitlab.errors import OptionError
from vitlab.evaluation.metrics import METRICS, main_of
from vitlab.experiments.sweep import best_of
from vitlab.recipes.recipe import Host, Recipe
from vitlab.training import first_state, observer

VIT = "ViT(width=16,depth=2,heads=2,mlp=32)/8"
# squares on a plain ground are near-duplicates wherever they are
HOST = Host(
    workers=0, device="cpu", report="no", checkpoint_every=0, check_duplicates="no", effort=BRIEF
)
COUNT = 40
FIGURE = {"regress": "r2", "detect": "ap50", "segment": "miou"}
FREE = {"optimizer": "schedule-free", "schedule": "constant"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, annotations and masks of small pictures, and a segmenter that was fitted."""
    place = tmp_path_factory.mktemp("tasks")
    (place / "squares").mkdir()
    lines, images, boxes = ["path,side"], list[Any](), list[Any]()
    for number in range(COUNT):
        left, top, side = np.random.default_rng(number).integers((0, 0, 6), (12, 12, 12)).tolist()
        pixels = np.full((24, 24), 60, np.uint8)
        pixels[top : top + side, left : left + side] = 220
        Image.fromarray(pixels).save(place / "squares" / f"{number}.png")
        lines.append(f"{number}.png,{side}")
        images.append({"id": number, "file_name": f"{number}.png", "width": 24, "height": 24})
        boxes.append({"image_id": number, "category_id": 1, "bbox": [left, top, side, side]})
    (place / "squares" / "table.csv").write_text("\n".join(lines))
    found = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "square"}]}
    (place / "squares" / "found.json").write_text(json.dumps(found))
    torch.manual_seed(0)
    vitlab.save(vitlab.create(VIT, classes=0, image_size=24), place / "weights")
    scenes = str(scene_folder(place / "scenes", COUNT, 24, 32))
    how: dict[str, Any] = {"task": "segment", "by": "ridge", "host": HOST, "quiet": True}
    vitlab.probe(scenes, place / "weights", place / "fitted", **how)
    return place


def recipe_of(task: str, place: Path, **given: Any) -> Recipe:
    """A short run of a task."""
    how: dict[str, Any] = {"steps": 6, "batch": 8, "lr": 3e-3, "test_every": 0.5} | given
    if task == "segment":
        data, own = place / "scenes", {"weights": str(place / "fitted")}
        return vitlab.recipe("segment", str(data), **own, **how)
    own: dict[str, Any] = {"model": VIT, "image_size": 24}
    if task == "regress":
        return vitlab.recipe(
            task, str(place / "squares" / "table.csv"), targets="side", **own, **how
        )
    own |= {"object_queries": 4, "query_blocks": 1}
    return vitlab.recipe(task, str(place / "squares" / "found.json"), **own, **how)


def lines_of(run: vitlab.Run, kind: str) -> list[dict[str, Any]]:
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


@pytest.mark.parametrize("task", [*FIGURE])
def test_the_weights_with_the_best_figure_are_kept(
    task: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The third look is made the best one."""
    looks, real, heads = list[float](), observer.Observer.test, list[Any]()

    def look(self: Any, source: Any, **options: Any) -> Any:
        figures, *rest = real(self, source, **options)
        if options and len(looks) < 5:
            looks.append(0.9 - 0.1 * abs(len(looks) - 2))
            heads.append({n: t.clone() for n, t in self.state.head.state_dict().items()})
            figures[FIGURE[task]] = looks[-1]
        return figures, *rest

    monkeypatch.setattr(observer.Observer, "test", look)
    run = vitlab.train(
        recipe_of(task, place, patience=2, steps=40), tmp_path / "run", host=HOST, quiet=True
    )
    curve = lines_of(run, "validation")
    assert [line[FIGURE[task]] for line in curve] == looks
    assert run.metrics["loss"] == curve[2]["loss"] != curve[-1]["loss"]
    kept = [*load_file(run.folder / f"{task}.safetensors").values()]
    for own in heads[2].values():
        assert any(own.shape == each.shape and torch.allclose(own, each.float()) for each in kept)
    data = str(place / ("scenes" if task == "segment" else "squares"))
    data += "" if task == "segment" else "/table.csv" if task == "regress" else "/found.json"
    code, out, err = call(capsys, "evaluate", str(run.folder), data, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found[FIGURE[task]] == run.metrics[FIGURE[task]]
    assert found["images"] == run.metrics["test_images"]


def test_an_average_has_the_heads_average(place: Path, tmp_path: Path) -> None:
    """Of a head that starts at zero, half of its first step."""
    how: dict[str, Any] = {"steps": 1, "head_start": "zero"}
    last = vitlab.train(recipe_of("regress", place, **how), tmp_path / "last", host=HOST)
    how |= {"ema": 0.5, "ema_warmup": False}
    mean = vitlab.train(recipe_of("regress", place, **how), tmp_path / "mean", host=HOST)
    one, half = (load_file(run.folder / "regress.safetensors") for run in (last, mean))
    assert one["weight"].abs().max() > 0
    torch.testing.assert_close(half["weight"], one["weight"] / 2)


@pytest.mark.parametrize(("task", "how"), [("detect", {"ema": 0.9}), ("segment", FREE)], ids=str)
def test_a_run_goes_on_with_averages_and_the_best_weights(
    task: str, how: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(task, place, patience=9, **how)
    whole = vitlab.train(recipe, tmp_path / "whole", host=HOST, quiet=True)

    def stop(line: dict[str, Any]) -> None:
        if line["kind"] == "validation" and line["step"] >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vitlab.train(recipe, tmp_path / "run", host=HOST, on_line=stop, quiet=True)
    run = vitlab.train(recipe, tmp_path / "run", host=HOST, resume=True, quiet=True)
    name = f"{task}.safetensors"
    for file in (name, "model/model.safetensors"):
        one, other = (load_file(each.folder / file) for each in (whole, run))
        assert all(one[key].equal(other[key]) for key in one)
    assert run.metrics[FIGURE[task]] == whole.metrics[FIGURE[task]]


@pytest.mark.parametrize("task", ["regress", "segment"])
def test_a_sweep_chooses_by_the_tasks_figure(task: str, place: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"share": 0.2, "host": HOST, "quiet": True}
    run = vitlab.sweep(recipe_of(task, place, steps=3), tmp_path / "run", [1e-5, 5e-3], **how)
    found = run.metrics["sweep"]
    scores = [row[FIGURE[task]] for row in found["runs"]]
    assert found["best"] == scores.index(max(scores))
    held = {row["test_images"] for row in found["runs"]}
    train = run.metrics["images"]
    assert {row["images"] for row in found["runs"]} == {train - held.pop()}
    assert ("learned_from" in found["runs"][0]) == (task == "segment")


def test_each_image_is_in_one_fold(place: Path, tmp_path: Path) -> None:
    found = vitlab.cross_validate(
        recipe_of("detect", place, steps=1), tmp_path / "run", 2, host=HOST
    )
    assert sum(row["test_images"] for row in found["runs"]) == found["images"] == COUNT
    assert found["ap50"] == pytest.approx(np.mean([row["ap50"] for row in found["runs"]]))
    assert "Likely label errors" not in (tmp_path / "run" / "report.html").read_text()


def test_a_fold_leaves_out_images_that_the_head_was_fitted_to(place: Path, tmp_path: Path) -> None:
    recipe = recipe_of("segment", place, steps=1, fold="1/2")
    run = vitlab.train(recipe, tmp_path / "run", host=HOST)
    (line,) = (each for each in run.metrics["notes"] if "learned from them" in each)
    assert "test images are left out" in line
    assert run.metrics["images"] + run.metrics["test_images"] < COUNT


def test_a_ridge_regression_is_not_fitted_twice(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"targets": "side", "steps": 2, "host": HOST, "quiet": True}
    given = str(place / "squares" / "table.csv"), place / "weights"
    whole = vitlab.finetune(*given, tmp_path / "whole", **how)

    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vitlab.finetune(*given, tmp_path / "run", on_line=stop, **how)
    monkeypatch.setattr(first_state, "find_ridge", None)
    run = vitlab.finetune(*given, tmp_path / "run", resume=True, **how)
    assert run.metrics["r2"] == whole.metrics["r2"]
    assert run.metrics["notes"] == whole.metrics["notes"]


def test_the_best_row_has_the_best_main_figure() -> None:
    rows = [
        {"lr": 1, "r2": -3.0},
        {"lr": 2, "r2": None},
        {"lr": 3, "r2": -0.5},
        {"lr": 4, "r2": -0.5},
    ]
    assert best_of(rows)["lr"] == 3
    assert best_of([{"lr": 1, "loss": 0.3}, {"lr": 2, "loss": 0.2}])["lr"] == 2
    assert best_of([{"diverged": "x", "lr": 1}, {"lr": 2, "miou": 0.0}])["lr"] == 2
    assert main_of({"loss": 0, "pixel_accuracy": 0, "miou": 0}) is METRICS["miou"]


@pytest.mark.parametrize("task", ["detect", "regress"])
def test_pictures_that_all_look_alike_are_learned_from_all_the_same(
    task: str, place: Path, tmp_path: Path
) -> None:
    host = Host(workers=0, device="cpu", report="no", effort=BRIEF)
    run = vitlab.train(recipe_of(task, place, steps=1), tmp_path / "run", host=host)
    line = "most images look so alike that near-duplicates mean nothing: only exact copies of test"
    assert any(note.startswith(line) for note in run.metrics["notes"])
    assert run.metrics["images"] + run.metrics["test_images"] == COUNT


def test_a_head_is_not_lost_in_a_soup(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = [str(place / "fitted"), str(place / "weights")]
    code, _, err = call(capsys, "soup", *two, "--out", str(place / "soup"))
    assert code == 2
    assert "answers with masks, which are not averaged: train with --ema, or name" in err
    code, _, err = call(capsys, "soup", two[0], two[0], "--part", "x", "--out", str(place / "soup"))
    assert (code, "which are not averaged" in err) == (2, True)
    with pytest.raises(OptionError, match="which are not averaged"):
        vitlab.soup(two)
