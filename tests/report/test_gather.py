"""From a run folder and predictions to a report: what it shows, of whatever version they are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from conftest import photo_folder
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Data
from vitlab.evaluation.infer import Probabilities
from vitlab.evaluation.metrics import figures
from vitlab.report import gather
from vitlab.report.facts import points
from vitlab.report.gather import survey, write_report
from vitlab.runs.run_folder import RunFolder


def line(step: int, loss: float, kind: str = "train") -> str:
    about = {"kind": kind, "step": step, "epoch": float(step), "loss": loss, "accuracy": 0.5}
    return json.dumps(about)


def test_a_folder_with_the_least_that_a_run_leaves(tmp_path: Path) -> None:
    """Neither survey, device, majority rate nor intervals; a ResNet, which has no attention."""
    made = vitlab.create("BiT-R(1-1)x1", classes=10, image_size=32, channels=1)
    source = open_to_learn("digits").test
    generator = np.random.default_rng(0)
    table = torch.from_numpy(generator.normal(size=(40, 10))).softmax(-1).numpy()
    done = predicted(table, source.target.values[:40])
    (tmp_path / "run.toml").write_text('[run]\ncommand = "x"\n[versions]\n[data]\ndata = "y/z"\n')
    lines = [line(1, 2.0), line(2, 1.5), *(line(step, 1.0) for step in range(3, 6))]
    lines += [line(2, 1.75), line(2, 1.25, "test")]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    labels, metrics = done.labels.values, figures(table, done.labels)
    page = write_report(RunFolder(tmp_path), made, source, done, metrics, ["a note"]).read_text()
    assert " on z</bdi></h1>" in page
    assert "Loss against epoch: training 1; test 1.25." in page
    drawn = points(RunFolder(tmp_path).journal.read(), ("train",))
    losses = [each.values["loss"] for each in drawn]
    assert losses == [2.0, 1.75, 1.0, 1.0, 1.0]  # step 2 was taken again
    assert f"{(table.argmax(1) == labels).mean():.1%} of 40 test images correct" in page
    assert '<section id="mistakes"' in page
    inside = page.split('<details id="inside"')[1].split("<details id=")[0]
    assert "Token similarity" in inside
    assert inside.count('class="lens whole"') == 2 * 4  # the photo and the colors of four images
    assert "vitlab inspect RUN IMAGE… --out inside" in inside
    for word in ("Attention", "head", "Positions"):
        assert word not in inside
    assert "By guessing" not in page


@pytest.fixture(scope="module")
def model() -> Any:
    name = "ViT(width=16,depth=1,heads=2,mlp=16)/4"
    return vitlab.create(name, classes=10, image_size=8, channels=1).eval()


def predicted(table: np.ndarray, labels: np.ndarray) -> Probabilities:
    """Predictions of the first images."""
    return Probabilities(table, SingleLabels(labels), np.arange(len(labels)), {}, 1.0)


def test_each_confusion_is_shown_and_the_most_confident_first(model: Any) -> None:
    source = open_to_learn("digits").test
    labels, generator = source.target.values, np.random.default_rng(0)
    guesses = np.where(generator.random(359) < 0.75, labels, generator.integers(0, 10, 359))
    sure = generator.uniform(0.5, 1, len(labels))
    table = np.repeat((1 - sure)[:, None] / 9, 10, axis=1)
    table[np.arange(len(labels)), guesses] = sure
    done = predicted(table, labels)
    shown = gather.mistakes(model, source, done)
    wrong = [(int(t), int(g)) for t, g in zip(labels, guesses, strict=True) if t != g]
    pairs = [each.pair for each in shown]
    assert len(set(wrong)) > 30
    assert set(pairs) == set(wrong)
    assert len(shown) == gather.MISTAKES
    firsts = [each for n, each in enumerate(shown) if each.pair not in pairs[:n]]
    assert pairs[: len(firsts)] == [each.pair for each in firsts]  # before a second one of any
    order = [each.confidence for each in firsts]
    assert order == sorted(order, reverse=True)
    for each in firsts:
        places = [n for n in range(359) if (labels[n], guesses[n]) == each.pair]
        assert each.confidence == max(done.probabilities[n].max() for n in places)
        assert each.own == pytest.approx((1 - each.confidence) / 9)


def test_a_mistake_that_is_gone_since_has_no_picture(model: Any, tmp_path: Path) -> None:
    photos = photo_folder(tmp_path / "photos", {"blue": 4, "red": 4}, 30, 50)
    source = open_to_learn(str(photos), options=Data(test_fraction=0.5)).test
    done = predicted(np.eye(2)[1 - source.target.values], source.target.values)
    (gone := Path(source.name(1))).unlink()
    shown = {each.name: each.picture is None for each in gather.mistakes(model, source, done)}
    assert shown == {source.name(n): source.name(n) == str(gone) for n in range(3)}


def test_the_doubts_are_the_sure_mistakes(model: Any) -> None:
    source = open_to_learn("digits").test.take(np.arange(120))
    truth = source.target.values
    table = np.full((120, 10), 0.02)
    table[np.arange(120), truth] = 0.82
    for place in range(0, 120, 10):
        sure = place < 30
        table[place] = 0.01 if sure else 0.05
        table[place, (truth[place] + 1) % 10] = 0.9 if sure else 0.5
        table[place, truth[place]] = 0.02 if sure else 0.1
    table /= table.sum(1, keepdims=True)
    done = predicted(table, truth)
    found = gather.doubts(model, source, done)
    assert found is not None
    assert {each.name for each in found.shown} == {source.name(i) for i in (0, 10, 20)}
    assert (found.listed, found.images) == (3, 120)
    for each in found.shown:
        assert each.own == pytest.approx(0.02)
        given, better = map(source.classes.index, (each.truth, each.guess))
        assert (given + 1) % 10 == better
        assert each.confidence == pytest.approx(0.9)
        assert each.picture is not None
    several = replace(done, labels=MultiLabels.of_table(np.eye(10, dtype=np.uint8)[truth]))
    kinds = gather.doubts(model, source, several)
    assert kinds is not None
    assert kinds.shown
    assert kinds.shown[0].confidence is None
    assert gather.doubts(model, source, predicted(table[:50], truth[:50])) is None


def test_the_data_is_surveyed(tmp_path: Path) -> None:
    photo_folder(tmp_path / "photos" / "train", {"blue": 9, "red": 4}, 30, 50)
    photo_folder(tmp_path / "photos" / "test", {"red": 5}, 30, 50)
    found = survey(open_to_learn(str(tmp_path / "photos")))
    assert found.counts == {"train": [9, 4], "test": [0, 5]}
    assert found.images == {"train": 13, "test": 5}
