"""Which pictures a report shows, and what it knows of the data."""

import copy
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import photo_folder
from vitlab.data.decode.stored import StoredImage
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.learning import open_to_learn
from vitlab.data.sources.source import Derived
from vitlab.errors import DataError
from vitlab.evaluation.infer import Predictions
from vitlab.report import album
from vitlab.report.survey import survey


@pytest.fixture(scope="module")
def model() -> vitlab.VisionTransformer:
    made = vitlab.create(
        "ViT(width=16,depth=1,heads=2,mlp=16)/4", classes=10, image_size=8, channels=1
    )
    assert isinstance(made, vitlab.VisionTransformer)
    return made.eval()


def predicted(labels: np.ndarray, guesses: np.ndarray, sure: np.ndarray) -> Predictions:
    """Predictions of these classes with these probabilities."""
    table = np.repeat((1 - sure)[:, None] / 9, 10, axis=1)
    table[np.arange(len(labels)), guesses] = sure
    return Predictions(table, SingleLabels(labels), np.arange(len(labels)), {}, 1.0)


def test_each_confusion_is_shown_and_the_most_confident_first(
    model: vitlab.VisionTransformer,
) -> None:
    source = open_to_learn("digits").test
    labels, generator = source.labels.values, np.random.default_rng(0)
    guesses = np.where(generator.random(359) < 0.75, labels, generator.integers(0, 10, 359))
    done = predicted(labels, guesses, generator.uniform(0.5, 1, len(labels)))
    shown = album.mistakes(model, source, done)
    wrong = [(int(t), int(g)) for t, g in zip(labels, guesses, strict=True) if t != g]
    pairs = [each.pair for each in shown]
    assert len(set(wrong)) > 30
    assert set(pairs) == set(wrong)
    assert len(shown) == album.MISTAKES
    firsts = [each for n, each in enumerate(shown) if each.pair not in pairs[:n]]
    assert shown[: len(firsts)] == firsts  # one of each, before a second one of any
    sure = [each.confidence for each in firsts]
    assert sure == sorted(sure, reverse=True)
    for each in firsts:
        places = [n for n in range(359) if (labels[n], guesses[n]) == each.pair]
        assert each.confidence == max(done.probabilities[n].max() for n in places)
        assert each.own == pytest.approx((1 - each.confidence) / 9)
    names = [each.name for each in album.listed(source, done)]
    assert len(names) == len(wrong)
    assert {each.name for each in shown} <= set(names)


def test_of_several_labels_all_that_are_predicted_are_named(
    model: vitlab.VisionTransformer,
) -> None:
    source = open_to_learn("digits").test
    truth = np.zeros((3, 10), np.uint8)
    truth[0, [1, 2]] = truth[1, 3] = 1
    table = np.full((3, 10), 0.1)
    table[0, [1, 4]] = 0.9, 0.6
    done = Predictions(table, MultiLabels(truth), np.arange(3), {}, 1.0)
    chosen = copy.deepcopy(model)
    chosen.provenance = {"thresholds": [0.5] * 4 + [0.7] * 6}
    assert "1, 4" not in {each.guess for each in album.examples(chosen, source, done)}
    found = {each.truth: each for each in album.examples(model, source, done)}
    assert found["1, 2"].guess == "1, 4"
    assert found["3"].guess == found["none"].guess == "none"
    assert found["3"].own is None
    assert found["3"].attention is not None
    torch.testing.assert_close(torch.tensor(found["3"].attention.shape), torch.tensor([2, 2]))


def test_the_data_is_surveyed(tmp_path: Path) -> None:
    photo_folder(tmp_path / "photos", {"blue": 9, "red": 4}, 30, 50)
    first = sorted((tmp_path / "photos" / "blue").iterdir())[0]
    first.write_bytes(first.read_bytes()[:60])  # damaged
    shutil.copytree(tmp_path / "photos" / "red", tmp_path / "photos" / "test" / "red")
    for number, image in enumerate(sorted((tmp_path / "photos" / "red").iterdir())):
        image.rename(image.with_name(f"{number}-red{image.suffix}"))
    train = tmp_path / "photos" / "train"
    train.mkdir()
    for name in ("blue", "red"):
        (tmp_path / "photos" / name).rename(train / name)
    found = survey(open_to_learn(str(tmp_path / "photos")), 3)
    assert found.counts == {"train": [9, 4], "test": [0, 4]}
    assert found.images == {"train": 13, "test": 4}
    assert [len(found.samples[number]) for number in (0, 1)] == [5, 4]  # the first is damaged
    for number, name in enumerate(("blue", "red")):
        for each in found.samples[number]:
            assert f"/{name}/" in each.name
            assert each.pixels.shape == (30, 30, 3)


def test_a_survey_of_many_classes_stays_small() -> None:
    digits = survey(open_to_learn("digits"), 1)
    assert digits.images == {"train": 1438, "test": 359}
    assert sum(len(each) for each in digits.samples.values()) == 60
    assert all(each.pixels.shape == (8, 8) for own in digits.samples.values() for each in own)


@dataclass(frozen=True)
class Gone(Derived):
    """Images that can no longer be fetched."""

    def image(self, index: int) -> StoredImage:
        raise DataError(f"cannot fetch image {index}")


def test_images_that_are_gone_are_left_out_of_the_survey() -> None:
    splits = open_to_learn("digits")
    found = survey(replace(splits, train=Gone(splits.train)), 1)
    assert not any(found.samples.values())
    assert found.images == {"train": 1438, "test": 359}
