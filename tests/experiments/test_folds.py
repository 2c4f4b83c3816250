"""Cross-validation: each image predicted once, by a model that did not learn from it."""

import csv
import json
import logging
import re
import shutil
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

import vitlab
from conftest import LIGHT, call, photo, photo_folder
from experiments import small
from experiments.small import HOST, TINY
from slow_clock import CLOCKS, SlowClock, slowed
from steady import wait_until
from steps import asked_to_stop
from vitlab.data.labels import SingleLabels
from vitlab.errors import DivergedError, OptionError, RunError
from vitlab.evaluation.label_errors import find_label_errors
from vitlab.progress import LOG
from vitlab.training.stop import Interrupted

recipe = partial(small.recipe, seed=0, clip=1.0, steps=16, lr=3e-3)  # enough to tell the colors


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of twelve and nine pictures, not split; one of the red ones is blue."""
    folder = tmp_path_factory.mktemp("few") / "photos"
    photo_folder(folder, {"blue": 12, "red": 9}, 16, 16)
    photo(99, 16, 16, tint=0).save(folder / "red" / "004.png")
    return folder


def read(file: object) -> list[dict[str, str]]:
    with Path(str(file)).open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory, few: Path) -> dict[str, object]:
    """A finished cross-validation with three folds."""
    return vitlab.cross_validate(recipe(few), tmp_path_factory.mktemp("cv") / "run", 3, host=HOST)


def test_out_of_fold_predictions_are_of_every_image_once(
    folded: dict[str, object], few: Path
) -> None:
    rows = read(folded["predictions"])
    assert sorted(row["image"] for row in rows) == sorted(map(str, few.rglob("*.png")))
    assert all(Path(row["image"]).parent.name == row["label"] for row in rows)
    assert min(sum(row["fold"] == f"{n}/3" for row in rows) for n in (1, 2, 3)) > 3
    chances = np.array([[float(row["p(blue)"]), float(row["p(red)"])] for row in rows])
    assert chances.sum(1) == pytest.approx(1, abs=1e-5)
    truth = [row["label"] for row in rows]
    assert [row["predicted"] for row in rows] == [["blue", "red"][n] for n in chances.argmax(1)]
    assert folded["accuracy"] == accuracy_score(truth, [row["predicted"] for row in rows])
    assert folded["nll"] == pytest.approx(log_loss(truth, chances, labels=["blue", "red"]), 1e-5)
    assert folded["images"] == 21
    one = next(row for row in rows if row["fold"] == "2/3")  # by the model of that fold
    answer = vitlab.classify(vitlab.load(f"{folded['run']}/fold-2-of-3"), [one["image"]])[0]
    assert dict(answer.classes)["red"] == pytest.approx(float(one["p(red)"]), abs=1e-5)


def test_likely_label_errors_are_those_of_the_out_of_fold_predictions(
    folded: dict[str, object],
) -> None:
    rows = read(folded["predictions"])
    chances = np.array([[float(row["p(blue)"]), float(row["p(red)"])] for row in rows])
    given = np.array([["blue", "red"].index(row["label"]) for row in rows])
    expected = find_label_errors(chances, SingleLabels(given))
    found = folded["label_errors"]
    assert isinstance(found, dict)
    assert found["listed"] == len(expected.suspects)
    assert found["expected"] == pytest.approx(expected.estimated)
    listed = read(found["file"])
    assert Path(listed[0]["image"]).parts[-2:] == ("red", "004.png")
    assert listed[0]["likely"] == "blue"
    assert {row["image"] for row in listed} == {rows[s.place]["image"] for s in expected.suspects}
    page = Path(str(folded["report"])).read_text()
    for words in ("Likely label errors", listed[0]["image"], "standard deviation", "3/3"):
        assert words in page


def test_a_finished_one_is_told_again_and_another_one_refused(
    folded: dict[str, object], few: Path, tmp_path: Path
) -> None:
    folder = Path(str(folded["run"]))
    assert vitlab.cross_validate(recipe(few), folder, 3, resume=True, host=HOST) == folded
    with pytest.raises(RunError, match="was started with folds=3, not 4: leave the option out"):
        vitlab.cross_validate(recipe(few), folder, 4, resume=True, host=LIGHT)
    with pytest.raises(RunError, match="already contains a cross-validation: pass resume=True"):
        vitlab.cross_validate(recipe(few), folder, 3, host=LIGHT)
    copy = shutil.copytree(folder, tmp_path / "copy")
    record = json.loads((copy / "campaign.json").read_text())
    del record["recipe"]["optimizer"]["head_first"]  # as of a version without the option
    (copy / "campaign.json").write_text(json.dumps(record))
    assert vitlab.cross_validate(recipe(few), copy, 3, resume=True, host=HOST) == folded
    (copy / "campaign.json").write_text("{}")
    with pytest.raises(RunError, match="is damaged or from another version"):
        vitlab.cross_validate(recipe(few), copy, 3, resume=True, host=LIGHT)


def test_stopped_it_goes_on_from_the_command_line(
    few: Path, tmp_path: Path, folded: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted, match="pass --resume to continue"), asked_to_stop(3):
        vitlab.cross_validate(recipe(few), out, 3, host=HOST)
    code, text, err = call(capsys, "train", "--out", str(out), "--resume", "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["nll"] == folded["nll"]
    assert Path(found["predictions"]).read_bytes() == Path(folded["predictions"]).read_bytes()
    code, text, _ = call(capsys, "train", "--out", str(out), "--resume")
    assert (code, "fold" in text) == (0, True)


def test_a_diverged_fold_ends_it(few: Path, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"fold 1/2 diverged: .*: try a lower lr= and another"):
        wild = recipe(few, lr=1e30, clip=0.0, steps=4)
        vitlab.cross_validate(wild, tmp_path / "run", 2, host=HOST)
    assert not (tmp_path / "run" / "fold-2-of-2").exists()
    with pytest.raises(OptionError, match="folds must be at least 2 and at most 9999, not 1"):
        vitlab.cross_validate(recipe(few), tmp_path / "b", 1, host=LIGHT)
    with pytest.raises(OptionError, match="leave fold and dev_share out"):
        vitlab.cross_validate(recipe(few, fold="1/2"), tmp_path / "b", host=LIGHT)


def test_several_labels_per_image(tmp_path: Path, few: Path) -> None:
    files = sorted(few.rglob("*.png"))
    lines = [{"path": str(f), "labels": [f.parent.name, "any"]} for f in files]
    lines[0]["labels"] = []
    table = few.parent / "list.jsonl"
    table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    many = vitlab.recipe("small", str(table), **TINY, loss="sigmoid")
    result = vitlab.cross_validate(many, tmp_path / "run", 2, host=HOST)
    rows = read(result["predictions"])
    labels = {row["image"]: row["labels"] for row in rows}
    assert labels[str(files[0])] == ""
    assert labels[str(files[-1])] == "any|red"
    assert 0 <= result["map"] <= 1
    assert set(result["mean"]) == {
        "map", "micro_f1", "macro_precision", "macro_recall", "macro_f1", "auroc", "bce",
        "brier", "exact_match",
    }  # fmt: skip
    assert result["intervals"].keys() == {"exact_match"}  # of so few images


class Ear(logging.Handler):
    """Hears how long all runs take, which another thread says."""

    def emit(self, record: logging.LogRecord) -> None:
        if "for all" in record.getMessage():
            HEARD.set()


HEARD = threading.Event()


def cut_short(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Change no image; end the first run once it is said how long all take."""
    if CLOCKS["now"].images > 320:
        wait_until(HEARD.is_set)
        raise RuntimeError("enough")
    return slowed(images, generator)


def test_how_long_all_runs_take_is_said_after_the_first_steps(
    few: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Budgets say it before; else the first run, whose steps of 8 images take half a second."""
    monkeypatch.setattr(time, "perf_counter", SlowClock(monkeypatch, 0.5 / 8).now)
    monkeypatch.setattr(LOG, "handlers", [*LOG.handlers, Ear()])
    HEARD.clear()
    with pytest.raises(RuntimeError, match="enough"):
        own = recipe(few, steps=240, test_every=1e6)
        vitlab.cross_validate(own, tmp_path / "run", 2, host=HOST, transform=cut_short)
    said = capsys.readouterr().err
    minutes = re.findall(r"^about (\d) min \d+ s for all 2 runs$", said, re.M)
    assert minutes in (["3"], ["4"])  # 240 steps each
    assert re.search(r"^about .* s to the end$", said, re.M)
    with pytest.raises(OptionError, match=r'^budget="1s" has room for 0 steps'):
        own = recipe(few, steps=0, budget="1s")
        vitlab.repeat(own, tmp_path / "two", 2, host=HOST, transform=slowed)
    assert "2 runs: at most about 2.0 s\n" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
