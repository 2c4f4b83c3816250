"""Thresholds of several labels: the best F1 by scikit-learn, on validation images alone, kept."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, precision_recall_fscore_support

import vitlab
from conftest import call, photo_folder
from evaluation.small_models import noisy
from six_runs import run_in, write_tags
from vitlab.data.labels import MultiLabels
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError, OptionError, WeightsError
from vitlab.evaluation import calibration
from vitlab.evaluation.calibration import best_threshold, best_thresholds, thresholds_json
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import predict
from vitlab.evaluation.metrics import figures
from vitlab.evaluation.per_class import class_figures
from vitlab.runs.run_folder import RunFolder

CLASSES = ("green", "odd", "red")


def some(seed: int, images: int = 60) -> tuple[Any, Any]:
    """Probabilities with many ties, and which classes images have."""
    generator = np.random.default_rng(seed)
    table = (generator.random((images, 4)) < (0.1, 0.3, 0.6, 0.9)).astype(np.uint8)
    scores = 1 / (1 + np.exp(-generator.normal(size=(images, 4)) - 2 * table + 2))
    return np.round(20 * scores) / 20, table


def test_no_threshold_of_a_grid_is_better_by_scikit_learn() -> None:
    scores, table = some(0)
    grid = np.arange(-0.025, 1, 0.05)  # one between any two scores
    each, one = (best_thresholds(scores, table, per) for per in ("class", "all"))
    assert each.shape == one.shape == (4,)
    for column in range(4):
        known = max(f1_score(table[:, column], scores[:, column] > cut) for cut in grid)
        mine = f1_score(table[:, column], scores[:, column] > each[column])
        assert mine == pytest.approx(known, abs=1e-12)
    known = max(f1_score(table, scores > cut, average="micro", zero_division=0) for cut in grid)
    assert f1_score(table, scores > one, average="micro") == pytest.approx(known, abs=1e-12)
    assert len(set(one.tolist())) == 1
    for values in (each, one, 0.3):
        found = figures(scores, MultiLabels.of_table(table), values)
        micro, macro = found["micro_f1"], found["macro_f1"]
        assert micro == pytest.approx(f1_score(table, scores > values, average="micro"))
        wanted = f1_score(table, scores > values, average="macro", zero_division=0)
        assert macro == pytest.approx(wanted)
    rows = class_figures(scores, MultiLabels.of_table(table), list("abcd"), each)
    known = precision_recall_fscore_support(table, scores > each, zero_division=0)
    assert np.allclose([[r.precision, r.recall, r.f1, r.images] for r in rows], np.array(known).T)


def test_degenerate_scores() -> None:
    yes, no = np.ones(3, np.uint8), np.zeros(3, np.uint8)
    scores = np.array([0.2, 0.4, 0.9])
    assert best_threshold(scores, no) == 0.5  # nothing to choose by
    assert best_threshold(scores, yes) == pytest.approx(0.1)
    assert best_threshold(np.zeros(3), yes) == 0.5
    assert best_threshold(np.full(3, 0.7), yes) == pytest.approx(0.35)
    assert best_threshold(np.full(3, 5e-324), yes) < 1
    assert best_threshold(scores, np.array([0, 0, 1])) == pytest.approx(0.65)
    tied = best_threshold(np.array([0.95, 0.7, 0.6, 0.5]), np.array([1, 0, 0, 1]))
    assert tied == pytest.approx(0.25)  # 0.825 is as good, and farther from 0.5
    lone = best_threshold(np.array([0.5, np.nextafter(0.5, 1)]), np.array([0, 1]))
    assert lone >= 0.5
    assert thresholds_json(np.array([0.5, 0.5]), "ab") == 0.5
    assert thresholds_json(np.array([0.5, 0.25]), "ab") == {"a": 0.5, "b": 0.25}


def model() -> vitlab.VisionTransformer:
    made = noisy(std=0.2, image_size=16, labels=CLASSES)
    made.provenance = {"multi_label": True}
    return made


def test_each_class_has_a_probability_of_its_own(tmp_path: Path) -> None:
    data, made = write_tags(tmp_path, "all"), model()
    result = vitlab.evaluate(made, data, split="all")
    assert {"map", "micro_f1", "macro_f1", "bce"} <= set(result)
    assert not {"accuracy", "top5", "nll", "ece"} & set(result)
    source = open_to_learn(data).whole
    assert source is not None
    own = predict(made, source, Compute(torch.device("cpu"), workers=0))
    assert own.labels.values.tolist() == source.target.values.tolist()
    assert not np.allclose(own.probabilities.sum(1), 1)
    assert figures(own.probabilities, own.labels)["map"] == result["map"]
    sums = []
    for several in (True, False):
        made.provenance = {"multi_label": several}
        (answer,) = vitlab.classify(made, [str(next(tmp_path.rglob("*.png")))], top=3)
        sums.append(sum(chance for _, chance in answer.classes))
    assert abs(sums[1] - 1) < 1e-6 < 1e-3 < abs(sums[0] - 1)


def test_they_are_chosen_on_validation_images_kept_and_used(tmp_path: Path) -> None:
    data, made = write_tags(tmp_path / "data", "train", "val", "test"), model()
    found = vitlab.choose_thresholds(made, data, workers=0)
    held = open_to_learn(data).validation
    assert held is not None
    seen = predict(made, held, Compute(torch.device("cpu"), workers=0))
    assert found.images == len(held)
    wanted = best_thresholds(seen.probabilities, seen.labels.values, "class")
    assert found.values == made.thresholds == tuple(wanted.tolist())
    folder = vitlab.save(made, tmp_path / "saved")
    again = vitlab.load(folder)
    assert again.thresholds == found.values
    assert vitlab.load(folder, classes=5).thresholds == (0.5,) * 5  # a new classifier
    rows = tmp_path / "rows.csv"
    result = vitlab.evaluate(again, data, out=rows, workers=0)
    assert result["thresholds"] == dict(zip(CLASSES, found.values, strict=True))
    tested = predict(made, open_to_learn(data).test, Compute(torch.device("cpu"), workers=0))
    chosen = tested.probabilities > wanted
    truth = tested.labels.values
    assert result["micro_f1"] == pytest.approx(f1_score(truth, chosen, average="micro"))
    low, high = result["intervals"]["exact_match"]
    assert low <= result["exact_match"] <= high
    with rows.open(newline="") as stream:
        written = [row["predicted"] for row in csv.DictReader(stream)]
    assert written == ["|".join(np.array(CLASSES)[row]) for row in chosen]
    files = sorted((tmp_path / "data" / "test").rglob("*.png"))
    answers = vitlab.classify(again, [str(each) for each in files])
    chances = [dict(each.classes) for each in answers]
    named = [{n for n, v in zip(CLASSES, found.values, strict=True) if c[n] > v} for c in chances]
    assert [set(each.predicted or ()) for each in answers] == named
    assert "predicted" in answers[0].as_dict()


def test_one_for_all_given_or_kept_when_the_temperature_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, made = write_tags(tmp_path / "data", "train", "val", "test"), model()
    half = vitlab.evaluate(made, data, workers=0)
    assert half["thresholds"] == 0.5
    low = vitlab.evaluate(made, data, threshold=0.01, workers=0)
    assert low["thresholds"] == 0.01
    assert low["classes"][0]["recall"] == 1
    assert low["map"] == half["map"]
    assert made.thresholds == (0.5, 0.5, 0.5)
    done = vitlab.evaluate(made, data, choose_thresholds="all", workers=0)
    assert len(set(made.thresholds)) == 1
    assert done["chosen_thresholds"]["before"]["micro_f1"] == half["micro_f1"]
    assert done["chosen_thresholds"]["after"]["micro_f1"] == done["micro_f1"]
    before = made.thresholds[0]
    monkeypatch.setattr(calibration, "fitted_temperature", lambda logits, labels: 2.5)
    vitlab.calibrate(made, data, workers=0)
    logit = np.log(before / (1 - before)) / 2.5
    assert made.thresholds[0] == pytest.approx(1 / (1 + np.exp(-logit)))
    assert vitlab.evaluate(made, data, workers=0)["micro_f1"] == done["micro_f1"]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    data, made = write_tags(tmp_path / "data", "train", "test"), model()
    with pytest.raises(DataError, match=r"no validation split to choose thresholds on, .*patience"):
        vitlab.choose_thresholds(made, data)
    for given, match in [
        ({"threshold": 1.0}, "threshold must be at least 0 and below 1, not 1"),
        ({"threshold": 0.5, "choose_thresholds": "all"}, "exclude each other"),
        ({"split": "validation", "choose_thresholds": "all"}, "images that it has seen"),
        ({"flips": True, "choose_thresholds": "all"}, "fitted to one view of each image"),
        ({"protocol": "imagenet", "threshold": 0.2}, "threshold applies only without protocol"),
    ]:
        with pytest.raises(OptionError, match=match):
            vitlab.evaluate(made, data, **given)
    with pytest.raises(OptionError, match="per must be class or all, not 'each'"):
        vitlab.choose_thresholds(made, data, "each")
    plain = vitlab.create("ViT(width=16,depth=1,heads=1,mlp=16)/4", classes=2, image_size=16)
    single = photo_folder(tmp_path / "single" / "train", {"red": 3, "green": 3}).parent
    for part in ("val", "test"):
        photo_folder(single / part, {"red": 3, "green": 3})
    with pytest.raises(OptionError, match="thresholds are for several labels per image"):
        vitlab.choose_thresholds(plain, str(single))
    with pytest.raises(OptionError, match="applies only where images have several labels"):
        vitlab.evaluate(plain, str(single), split="validation", threshold=0.3)
    made.provenance = {"thresholds": [0.5, "x", 0.1]}
    with pytest.raises(WeightsError, match="are not 3 numbers from 0 to 1: choose them again"):
        _ = made.thresholds


def test_the_command_keeps_them_with_a_run_and_its_report_shows_them(
    tags_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(tags_run.with_name("data") / "list.jsonl")
    out = str(shutil.copytree(tags_run, tmp_path / "run"))
    words = ("evaluate", out, data, "--choose-thresholds", "class")
    code, text, err = call(capsys, *words)
    assert code == 0, err
    assert "thresholds chosen on 10 validation images" in text
    kept = vitlab.load(out).thresholds
    assert kept != (0.5, 0.5, 0.5)
    page = RunFolder(out).report.read_text()
    assert f"thresholds chosen by F1 on 10 validation images: green {kept[0]:.3g}, odd" in page
    assert "probability is above its threshold" in page
    assert "mean average precision over the classes" in page
    assert "Confusion matrix" not in page
    code, text, _ = call(capsys, "evaluate", out, data, "--json")
    assert (code, json.loads(text)["thresholds"]["odd"]) == (0, kept[1])
    image = str(next((tags_run.with_name("data") / "test").rglob("*.png")))
    code, text, _ = call(capsys, "predict", out, image, "--json")
    assert set(json.loads(text)["predictions"][0]["predicted"]) <= set(CLASSES)
    assert run_in(tags_run).metrics["map"] is not None


def test_classes_whose_validation_images_decide_nothing_are_named(tmp_path: Path, capsys) -> None:
    """A class that none has keeps 0.5, one that all have gets a threshold below all scores."""
    rows = []
    for part in ("train", "val", "test"):
        photo_folder(tmp_path / part, {"red": 6})
        rows += [
            {"path": f"{part}/red/{i:03d}.png", "split": part}
            | {"labels": [CLASSES[i % 3]] if part != "val" else ["red", "odd"][: 1 + i % 2]}
            for i in range(6)
        ]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    vitlab.choose_thresholds(model(), str(tmp_path / "list.jsonl"), workers=0)
    said = capsys.readouterr().err
    assert "no validation image has green: such classes keep the threshold 0.5" in said
    assert "every validation image has red: such classes get one below all of their scores" in said
