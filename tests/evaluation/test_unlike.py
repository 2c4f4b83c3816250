"""Unlike the training images: the distance against scipy's, its threshold, and what is said."""

import csv
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score

import vitlab
from conftest import BRIEF, call
from vitlab.evaluation.unlike import AXES, LIKE, fit_unlike
from vitlab.models.model import Model
from vitlab.models.unlike import Unlike
from vitlab.recipes.recipe import Host


def drawn(
    count: int, seed: int, width: int = 12, classes: int = 4
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features of one shape around the means of their classes, far from zero."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    centers, shape = fixed.normal(40, 9, (classes, width)), fixed.normal(size=(width, width))
    y = np.arange(count) % classes
    return (centers[y] + rng.normal(size=(count, width)) @ shape).astype(np.float32), y


def distances(unlike: Unlike, x: NDArray[np.float32]) -> NDArray[np.float64]:
    return unlike.distances(torch.from_numpy(x).double()).numpy()


LAYER = 3


def test_distances_are_mahalanobis_and_the_threshold_is_of_images_left_out() -> None:
    (x, y), (new, _) = drawn(200, 1), drawn(50, 2)
    folds = np.arange(200) // 4 % 5

    def expected(
        x: NDArray[np.float32], y: NDArray[np.int64], new: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        centers = np.stack([x[y == each].mean(0, np.float64) for each in range(4)])
        within = LedoitWolf(assume_centered=True).fit(x - centers[y]).precision_
        return cdist(new, centers, "mahalanobis", VI=within).min(1)

    parts = [expected(x[folds != k], y[folds != k], x[folds == k]) for k in range(5)]
    limit = np.sort(np.concatenate(parts))[int(np.ceil(LIKE * 201)) - 1]
    unlike, known = fit_unlike(x, y, folds, LAYER), expected(x, y, new) / limit
    np.testing.assert_allclose(distances(unlike, new), known, rtol=1e-4)
    single = unlike.distances(torch.from_numpy(new)).numpy()  # as in a graph
    np.testing.assert_allclose(single, known, rtol=1e-4)


@pytest.mark.parametrize("count", [40, 1000])
def test_one_in_twenty_new_images_of_the_same_kind_is_beyond_the_threshold(count: int) -> None:
    (x, y), (new, _) = drawn(count, 1), drawn(4000, 2)
    beyond = (distances(fit_unlike(x, y, np.arange(count) // 4 % 5, LAYER), new) > 1).mean()
    assert beyond < 0.1 if count < 1000 else 0.03 < beyond < 0.07


def test_few_axes_are_kept_of_wide_features() -> None:
    x, y = drawn(300, 1, width=200)
    unlike = fit_unlike(x, y, np.arange(300) // 4 % 5, LAYER)
    assert unlike.axes.shape == (200, AXES)
    new, _ = drawn(100, 2, width=200)
    strange = np.random.default_rng(3).normal(40, 90, (100, 200)).astype(np.float32)
    assert np.median(distances(unlike, new)) < 1 < np.median(distances(unlike, strange))


def test_few_images_and_features_that_do_not_vary() -> None:
    x, y = drawn(4, 1)  # one of each class
    assert np.isfinite(distances(fit_unlike(x, y, y, LAYER), x)).all()
    same = np.ones((6, 3), np.float32)
    found = distances(fit_unlike(same, np.arange(6) % 2, np.arange(6) // 2, LAYER), same)
    assert np.isfinite(found).all()
    one, of_one = drawn(30, 1, classes=1)
    assert np.isfinite(distances(fit_unlike(one, of_one, np.arange(30) % 3, LAYER), one)).all()


def backbone() -> Model:
    """A model without a classifier that was never trained."""
    return vitlab.create(
        "ViT(width=32,depth=2,heads=2,mlp=64)/2", classes=0, image_size=8, channels=1,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def known_pairs(
    images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> list[tuple[NDArray[np.uint8], int]]:
    """The digits 0 to 6 with their labels."""
    known = labels < 7
    return list(zip(images[known], labels[known].tolist(), strict=True))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    """A classifier of the digits 0 to 6, on features that were never trained."""
    folder, model, pairs = tmp_path_factory.mktemp("unlike"), backbone(), known_pairs(*digits())
    how = {
        "host": Host(workers=0, report="no", effort=BRIEF),
        "cache": None,
        "layers": 1,
        "by": "ridge",
    }
    data = {"train": pairs[:900], "test": pairs[900:]}
    return vitlab.probe(data, model, folder / "run", quiet=True, **how)


@cache
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.images * 15).astype(np.uint8), found.target


def shuffled() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The digits, those of each writer no longer together."""
    images, labels = digits()
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order], labels[order]


def test_classes_left_out_are_told_from_others(fitted: vitlab.Run) -> None:
    images, labels = digits()
    known = [*images[labels < 7][900:]]
    strange = [*images[labels >= 7]]
    answers = vitlab.classify(fitted.model, [*known, *strange])
    far = np.array([each.distance for each in answers])
    assert roc_auc_score(np.arange(len(far)) >= len(known), far) > 0.65
    assert (far[: len(known)] > 1).mean() < 0.15
    assert [each.as_dict()["unlike"] for each in answers] == (far > 1).tolist()


def test_the_threshold_may_be_that_of_other_images() -> None:
    (x, y), (held, _), (new, _) = drawn(200, 1), drawn(100, 2), drawn(4000, 3)
    folds = np.arange(200) // 4 % 5
    unlike = fit_unlike(x, y, folds, LAYER, held)
    beyond = (distances(unlike, held) > 1 + 1e-4).sum()
    assert beyond == 4  # of 100: the 96th is the limit
    assert 0.02 < (distances(unlike, new) > 1).mean() < 0.09
    alone = fit_unlike(x, y, folds, LAYER)
    assert torch.equal(unlike.axes, alone.axes)
    assert not torch.equal(unlike.limit, alone.limit)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    """The same digits learned by all of the model, a hundred of them held out for its choices."""
    folder, model, pairs = tmp_path_factory.mktemp("trained"), backbone(), known_pairs(*shuffled())
    data = {"train": pairs[:800], "validation": pairs[800:900], "test": pairs[900:]}
    how = {"epochs": 5.0, "batch": 40, "lr": 8e-3, "flip": False, "layer_decay": 1.0}
    how |= {"head_start": "zero", "precision": "fp32"}
    host = Host(workers=0, report="no", checkpoint_every=0, effort=BRIEF)
    return vitlab.finetune(data, model, folder / "run", host=host, quiet=True, **how)


def test_a_model_that_was_trained_tells_strangers_better_than_its_answers_do(
    trained: vitlab.Run,
) -> None:
    images, labels = shuffled()
    known = [*images[labels < 7][900:]]
    answers = vitlab.classify(vitlab.load(trained.folder), [*known, *images[labels >= 7]])
    far = np.array([each.distance for each in answers])
    strange = np.arange(len(far)) >= len(known)
    assert (far[~strange] > 1).mean() < 0.12
    unsure = [-each.classes[0][1] for each in answers]
    assert roc_auc_score(strange, far) > max(0.6, roc_auc_score(strange, unsure))


def test_the_command_says_it(
    fitted: vitlab.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    images, labels = digits()
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    for name, pixels in {"like": images[labels < 7][0], "noise": noise}.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    words = ("predict", str(fitted.folder), str(tmp_path / "*.png"), "--top", "1")
    code, out, _ = call(capsys, *words)
    assert code == 0
    like, strange = out.splitlines()[:2]
    assert "unlike" not in like
    assert strange.endswith("  unlike the training images")
    _, out, _ = call(capsys, *words, "--json")
    rows = json.loads(out)["predictions"]
    assert [row["unlike"] for row in rows] == [row["distance"] > 1 for row in rows] == [False, True]
    call(capsys, *words, "--out", str(tmp_path / "rows.csv"))
    with (tmp_path / "rows.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["unlike"] for row in table] == ["False", "True"]
    assert [float(row["distance"]) for row in table] == pytest.approx(
        [row["distance"] for row in rows], rel=1e-6
    )


def test_mirror_images_have_no_part_in_it_and_a_model_may_not_know(
    fitted: vitlab.Run, digits_run: Path
) -> None:
    picture = digits()[0][:3]
    plain, flipped = (
        [each.distance for each in vitlab.classify(fitted.model, [*picture], flips=flips)]
        for flips in (False, True)
    )
    assert np.isfinite(plain).all()
    assert flipped == pytest.approx(plain)
    model: Model = vitlab.load(digits_run, classes=10)
    assert model.unlike is None
    assert "distance" not in vitlab.classify(model, [picture[0]])[0].as_dict()
