"""Predictions: a model is used, and left as it was found."""

import pickle
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vitlab
from distributed.ranks import on_ranks
from evaluation.small_models import noisy
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.crops import fitted_image
from vitlab.data.open_splits import open_to_learn
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.memory import Arrays
from vitlab.distributed.launch import joined
from vitlab.errors import DataError, OptionError
from vitlab.evaluation import infer as room
from vitlab.evaluation.classification import classify_into
from vitlab.evaluation.classified_image import ClassifiedImage
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Want, infer, predict
from vitlab.evaluation.probes.feature_options import Pooled

CPU = torch.device("cpu")


def model(**choices: Any) -> vitlab.VisionTransformer:
    return noisy(**{"classes": 10, "channels": 1} | choices)


def modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


def test_an_answer_has_a_label_and_its_confidence() -> None:
    """The first of its classes, beside what it had; none of a damaged image."""
    made = model(channels=3)
    (good,) = vitlab.classify(made, [np.full((8, 8, 3), 9, np.uint8)], top=2)
    bad = ClassifiedImage("1.png", error="no image")
    assert (good.label, good.confidence) == good.classes[0]
    assert good.predicted is None
    assert good.as_dict().keys() == {"image", "top"}
    assert bad.label is None
    assert np.isnan(bad.confidence)
    assert bad.as_dict().keys() == {"image", "error"}


def test_answers_that_say_the_same_are_equal() -> None:
    """Also where no distance from the training images is known: NaN is not equal to itself."""
    made = model(channels=3)
    one, other = (
        vitlab.classify(made, [np.full((8, 8, 3), 9, np.uint8)], top=2)[0] for _ in range(2)
    )
    assert np.isnan(one.distance)
    assert one == other == pickle.loads(pickle.dumps(one))
    assert len({one, other}) == 1
    near = replace(one, distance=0.5)
    assert near == replace(other, distance=0.5)
    assert all(near != each for each in (one, replace(near, distance=0.6), "1.png"))
    assert one != replace(one, image="other")


def test_a_training_model_predicts_as_in_evaluation_and_goes_on_training() -> None:
    made = model(dropout=0.5, drop_path=0.5).train()
    made.blocks[0].eval()  # frozen, for instance
    before = modes(made)
    test = open_to_learn("digits").test
    first = predict(made, test, Compute(CPU)).probabilities
    assert modes(made) == before
    assert len(set(before)) == 2
    assert np.array_equal(first, predict(made.eval(), test, Compute(CPU)).probabilities)
    assert modes(made) == [False] * len(before)


def test_the_callers_random_state_is_untouched(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an engine is made, images are decoded by processes, or a page of code draws."""
    monkeypatch.setattr("vitlab.evaluation.compute.PACKING", 0)
    monkeypatch.setattr("vitlab.evaluation.compute.FEW", 0)
    made, how = model(classes=3, channels=3, dropout=0.5), {"workers": 0, "device": "cpu"}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    vitlab.evaluate(made, str(photos), **how | {"workers": 2})
    vitlab.classify(made, str(photos), **how)
    vitlab.embed(made, str(photos), tmp_path / "x.parquet", **how)
    vitlab.inductive_bias(made, str(photos), images=20, **how)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]


def test_only_damaged_images_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else goes wrong with an image ends the pass."""
    made, test = model(), open_to_learn("digits").test

    def fails(self: object, index: int) -> None:
        raise DataError("the store does not answer")

    monkeypatch.setattr(type(test), "image", fails)
    with pytest.raises(DataError, match="the store does not answer"):
        predict(made, test, Compute(CPU, workers=0))


def test_flips_average_the_probabilities_of_an_image_and_its_mirror_image() -> None:
    made = model(classes=2, channels=3, image_size=28, mean=0.2)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 40, 3), np.uint8)
    source = Images.of(Arrays(pixels), SingleLabels.blank(3, 2), ("a", "b"))
    made.provenance["temperature"] = 2.0
    done = predict(made, source, Compute(CPU), flips=True)
    for index in range(3):
        image = torch.from_numpy(fitted_image(source.image(index), made.config))
        own = (image[None].permute(0, 3, 1, 2) / 255 - 0.2) / 0.5
        with torch.inference_mode():
            both = made(torch.cat([own, own.flip(3)]))
        want = (both.double() / 2).softmax(-1).mean(0)
        np.testing.assert_allclose(done.probabilities[index], want, atol=1e-5)
    assert done.logits.size == 0
    assert not np.allclose(predict(made, source, Compute(CPU)).probabilities, done.probabilities)


def test_features_and_logits_of_one_pass() -> None:
    made, test = model(), open_to_learn("digits").test
    want: list[Want] = ["probabilities", "pixels", Pooled()]
    whole = predict(made, test, Compute(CPU), logits=True)
    parts = list(infer(made, test, Compute(CPU), want))
    for name, own in (("logits", whole.logits), ("probabilities", whole.probabilities)):
        np.testing.assert_allclose(
            np.concatenate([getattr(e, name) for e in parts]), own, atol=1e-5
        )
    assert [each.pixels.shape for each in parts] == [(256, 8, 8, 1), (103, 8, 8, 1)]
    (last,) = infer(made, test, Compute(CPU), [Pooled()], only=[1])
    assert np.array_equal(last.features, parts[1].features)
    assert last.logits.size == 0


def together(model: vitlab.VisionTransformer) -> list[object]:
    """One process of several."""
    with joined("cpu", 60) as (world, device):
        compute = Compute(device, engine="plain", workers=0, sharing=world.local_size)
        done = predict(model, open_to_learn("digits").test, compute, world=world)
    return [done.probabilities.tobytes().hex(), done.indices.tolist(), len(done.labels)]


def test_processes_predict_the_same_bytes_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "BATCH", 64)
    made = model()
    alone = predict(made, open_to_learn("digits").test, Compute(CPU, engine="plain"))
    said = on_ranks(3, partial(together, made), tmp_path / "ranks")
    found = [each["value"] for each in said]
    assert found[0] == [alone.probabilities.tobytes().hex(), list(range(359)), 359]
    assert found[1:] == [["", [], 0]] * 2


def test_every_image_is_predicted_once_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    made, test = model(), open_to_learn("digits").test
    whole = predict(made, test, Compute(CPU))
    monkeypatch.setattr(room, "BATCH", 50)
    steps: list[tuple[int, int]] = []
    again = predict(made, test, Compute(CPU), progress=lambda *given: steps.append(given))
    np.testing.assert_allclose(again.probabilities, whole.probabilities, atol=1e-6)
    assert whole.indices.tolist() == list(range(359))
    assert whole.labels.values.tolist() == test.target.values.tolist()
    assert steps == [(done, 359) for done in (50, 100, 150, 200, 250, 300, 350, 359)]
    np.testing.assert_allclose(whole.probabilities.sum(1), 1)
    assert whole.seconds > 0


def test_damaged_images_are_left_out_and_listed(photos: Path) -> None:
    whole = open_to_learn(str(photos)).whole
    assert isinstance(whole.store, ImageFiles)
    for name in ("blue/001", "red/019"):
        (photos / f"{name}.png").write_bytes(b"no image")
    made = model(classes=3, channels=3)
    done = predict(made, whole, Compute(CPU, workers=0))
    assert sorted(done.bad) == [1, 59]
    assert (
        done.bad[59] == f"{photos}/red/019.png: not a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF image"
    )
    assert len(done.probabilities) == len(done.labels) == 58
    assert done.labels.counts(3) == [19, 20, 19]
    assert not {1, 59} & set(done.indices.tolist())


def test_without_a_single_usable_image(photos: Path) -> None:
    for file in photos.rglob("*.png"):
        file.write_bytes(bytes(file))
    whole = open_to_learn(str(photos)).whole
    assert whole is not None
    made = model(classes=3, channels=3)
    (none,) = infer(made, whole, Compute(CPU, workers=0))
    assert none.probabilities.size == none.logits.size == 0
    assert (none.indices.tolist(), len(none.bad)) == ([], 60)
    with pytest.raises(DataError, match=r"blue/000\.png: not a JPEG"):
        predict(made, whole, Compute(CPU, workers=0))
    with pytest.raises(DataError, match=r"none of the 60 images can be read; .*x\.csv says why"):
        classify_into(photos.parent / "x.csv", made, whole, Compute(CPU, workers=0))
    rows = (photos.parent / "x.csv").read_text().splitlines()
    assert len(rows) == 61
    assert all("not a JPEG" in row for row in rows[1:])
    empty = Images.of(
        Arrays(np.empty((0, 8, 8, 1), np.uint8)), SingleLabels.blank(0, 3), ("a", "b", "c")
    )
    with pytest.raises(DataError, match="there are no images"):
        predict(made, empty, Compute(CPU))


def test_features_alone_are_no_classifier() -> None:
    with pytest.raises(
        OptionError, match=r"features: it has no classifier; train one first with vitlab finetune"
    ):
        predict(model(classes=0), open_to_learn("digits").test, Compute(CPU))
    with pytest.raises(OptionError, match="outputs features"):
        vitlab.evaluate(model(classes=0), "digits")
