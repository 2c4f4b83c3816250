"""One pass over some images: the same numbers as the model's own, and what it saw, small."""

from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import photo
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn, split_opened
from vitlab.evaluation.answers import sample
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.embedding_map import look_at, thumbnail
from vitlab.evaluation.infer import predict

CPU = torch.device("cpu")


def test_a_sample_is_seeded() -> None:
    assert sample(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    first = sample(1000, 50, 0).tolist()
    assert first == sorted(set(first))
    assert len(first) == 50
    assert sample(1000, 50, 0).tolist() != sample(1000, 50, 1).tolist()
    shares = np.bincount(np.concatenate([sample(20, 5, seed) for seed in range(400)]))
    assert shares / 400 == pytest.approx(0.25, abs=0.08)  # all equally likely


@pytest.mark.parametrize("name", ["ViT(width=16,depth=2,heads=2,mlp=32)/4", "BiT-R50x1"])
def test_features_and_probabilities_are_the_models(name: str) -> None:
    more = {"stages": (1, 1, 1, 1)} if name.startswith("BiT") else {}
    model = vitlab.create(name, classes=10, image_size=32, channels=1, **more)  # type: ignore[arg-type]
    model.provenance["temperature"] = 2.0
    source = open_to_learn("digits").test.take(np.arange(100, 108))
    chosen = np.array([1, 3, 4, 7])
    steps: list[int] = []
    seen = look_at(model, source, chosen, 16, Compute(CPU), lambda done, _: steps.append(done))
    done = predict(model, source, Compute(CPU, workers=0))
    assert seen.indices.tolist() == chosen.tolist()
    assert seen.probabilities == pytest.approx(done.probabilities[chosen], abs=1e-5)
    images = vitlab.preprocess(model)([source.image(index).decode(1) for index in chosen.tolist()])
    with torch.inference_mode():
        features = model.eval().features(images).numpy()
    assert seen.features == pytest.approx(features, abs=1e-4)
    assert seen.thumbnails.shape == (4, 16, 16, 3)
    assert (seen.bad, steps[-1]) == ({}, 4)


def test_without_a_classifier_or_of_many_sizes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        photo(1, 24, 48).save(tmp_path / name / "wide.png")
        (tmp_path / name / "x.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    model = vitlab.create(
        "ViT(width=16,depth=1,heads=2,mlp=32)/8", classes=0, image_size=32, fit="native"
    )
    splits = split_opened(open_images(str(tmp_path)))
    source = splits.whole
    assert source is not None
    seen = look_at(model, source, np.arange(len(source)), 12, Compute(CPU))
    assert seen.features.shape == (2, 16)
    assert seen.probabilities.shape == (2, 0)
    assert len(seen.bad) == 2
    assert (seen.thumbnails[:, 0] == 128).all()  # wide: nothing above and below
    assert (seen.thumbnails[:, 6] != 128).any()
    nothing = look_at(model, source, np.array(list(seen.bad)), 12, Compute(CPU))
    assert (len(nothing.features), len(nothing.thumbnails)) == (0, 0)


def test_a_thumbnail_keeps_the_shape() -> None:
    high = np.zeros((20, 10, 1), np.uint8)
    small = thumbnail(high, 8)
    assert small.shape == (8, 8, 3)
    assert (small[:, 2:6] == 0).all()
    assert (small[:, [0, 1, 6, 7]] == 128).all()
    sharp = thumbnail(np.array([[[0], [255]], [[255], [0]]], np.uint8), 4)
    assert sharp[:2, :2].max() == 0  # enlarged, not blurred
    assert sharp[:2, 2:].min() == 255
