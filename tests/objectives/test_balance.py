"""Uneven classes: what is decided, scikit-learn's weights, PyTorch's losses, focal loss by hand."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn import functional as F

from objectives.made import batch_of, seeded
from vitlab.data.augment.mix import Mix
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError
from vitlab.objectives.balance import class_weights, decided, imbalance
from vitlab.objectives.classify import Classify, objective_of
from vitlab.recipes.losses import ObjectivePart

Kind = Literal["softmax", "bce", "sigmoid"]
CLASSES = 4
UNEVEN = SingleLabels(np.repeat([0, 1, 2, 3], [50, 5, 20, 1]))
SEVERAL = MultiLabels.of_table(
    (np.random.default_rng(0).random((40, 3)) < [0.1, 0.5, 0.9]).astype(np.uint8)
)
WEIGHTS = class_weights(UNEVEN, CLASSES)
LABELS = torch.tensor([0, 3, 2, 2, 1, 0])


def batch(labels: torch.Tensor, classes: int = CLASSES) -> Batch:
    """Images that an identity takes for scores."""
    return batch_of(3 * torch.randn(len(labels), classes, generator=seeded(1)), labels)


def loss(objective: Classify, given: Batch) -> torch.Tensor:
    return objective.loss(nn.Identity(), given, torch.Generator())[0]


# The weights


def test_the_weights_are_those_that_scikit_learn_calls_balanced() -> None:
    want = compute_class_weight("balanced", classes=np.arange(4), y=UNEVEN.values)
    np.testing.assert_allclose(WEIGHTS, want, rtol=1e-6)
    assert WEIGHTS[UNEVEN.values].mean() == pytest.approx(1)


def test_of_several_labels_each_class_is_a_question_of_its_own() -> None:
    weights = class_weights(SEVERAL, 3)
    for column in range(3):
        answers = SEVERAL.values[:, column]
        want = compute_class_weight("balanced", classes=np.arange(2), y=answers)
        np.testing.assert_allclose(weights[:, column], want, rtol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999])
def test_effective_numbers_of_images(beta: float) -> None:
    """Cui et al., 2019: (1 - beta^n) / (1 - beta), that is 1 + beta + ... + beta^(n - 1)."""
    effective = np.array([sum(beta**power for power in range(n)) for n in (50, 5, 20, 1)])
    want = 1 / effective
    want /= want[UNEVEN.values].mean()
    np.testing.assert_allclose(class_weights(UNEVEN, 4, beta), want, rtol=1e-6)
    assert np.all(class_weights(UNEVEN, 4, 0.0) == 1)
    np.testing.assert_allclose(class_weights(UNEVEN, 4, 1 - 1e-9), WEIGHTS, rtol=1e-6)


def test_a_class_without_images_has_no_weight() -> None:
    weights = class_weights(SingleLabels(np.array([0, 0, 2])), 3)
    np.testing.assert_allclose(weights, [0.75, 0, 1.5])
    never = MultiLabels.of_table(np.array([[0, 1], [0, 1], [0, 0]], np.uint8))
    np.testing.assert_allclose(class_weights(never, 2), [[1, 1.5], [0, 0.75]])


# Weighted losses


def test_one_label_with_softmax_is_pytorchs_sum_over_the_number_of_images() -> None:
    given = batch(LABELS)
    want = nn.CrossEntropyLoss(torch.from_numpy(WEIGHTS), reduction="sum")
    got = loss(Classify(weights=WEIGHTS), given)
    torch.testing.assert_close(got, want(given.images, LABELS) / len(LABELS))
    mean = nn.CrossEntropyLoss(torch.from_numpy(WEIGHTS))(given.images, LABELS)
    torch.testing.assert_close(got / WEIGHTS[LABELS].mean(), mean)


@pytest.mark.parametrize("kind", ["softmax", "bce", "sigmoid"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_an_image_counts_as_its_class_does(kind: Kind, smoothing: float) -> None:
    given, want = batch(LABELS), 0.0
    for place, label in enumerate(LABELS):
        one = batch_of(given.images[[place]], label[None])
        want += float(WEIGHTS[label] * loss(Classify(smoothing, kind), one)) / len(LABELS)
    assert float(loss(Classify(smoothing, kind, weights=WEIGHTS), given)) == pytest.approx(want)


@pytest.mark.parametrize("kind", ["softmax", "bce"])
@pytest.mark.parametrize("threshold", [None, 0.0])
def test_a_mixture_counts_as_its_classes_do(kind: Kind, threshold: float | None) -> None:
    scores = batch(LABELS).images
    shares = Mix(0.7, None)(torch.zeros(6, 1, 1, 1), LABELS, CLASSES)[1]
    threshold = None if kind == "softmax" else threshold
    given = batch_of(scores, shares)
    targets = shares if threshold is None else (shares > threshold).float()
    if kind == "softmax":
        each = F.cross_entropy(scores, targets, reduction="none")
    else:
        each = F.binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(1)
    partners = LABELS[[1, 0, 3, 2, 5, 4]]
    counted = torch.from_numpy(0.7 * WEIGHTS[LABELS] + 0.3 * WEIGHTS[partners])
    got = loss(Classify(0.0, kind, threshold, WEIGHTS), given)
    torch.testing.assert_close(got, (counted * each).mean())


def test_several_labels_are_pytorchs_pos_weight_for_each_class() -> None:
    weights = class_weights(SEVERAL, 3)
    labels = torch.from_numpy(SEVERAL.batch())
    given = batch(labels, 3)
    positive = torch.from_numpy(weights[1] / weights[0])
    torch.testing.assert_close(  # torch's own recommendation: negatives over positives
        positive, (1 - labels).sum(0) / labels.sum(0)
    )
    each = F.binary_cross_entropy_with_logits(
        given.images, labels, pos_weight=positive, reduction="none"
    )
    want = (each * torch.from_numpy(weights[0])).mean()
    torch.testing.assert_close(loss(Classify(kind="bce", weights=weights), given), want)
    torch.testing.assert_close(loss(Classify(kind="sigmoid", weights=weights), given), 3 * want)


@pytest.mark.parametrize("kind", ["softmax", "bce"])
def test_the_losses_of_pieces_add_up(kind: Kind) -> None:
    """So that passes and processes may share a batch; PyTorch's mean over weights would not."""
    given = batch(LABELS)
    for objective in (Classify(0.1, kind, weights=WEIGHTS), Classify(0.1, kind, gamma=2.0)):
        parts = sum(len(piece) * loss(objective, piece) for piece in given.pieces(2))
        torch.testing.assert_close(loss(objective, given), torch.as_tensor(parts) / len(given))


# Focal loss


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_loss_by_hand(gamma: float) -> None:
    """Lin et al., 2017, eq. 4: -(1 - p)^gamma log p of the probability p of what is right."""
    given = batch(LABELS)
    scores, labels = given.images.double().numpy(), LABELS.numpy()
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    right = chances[np.arange(6), labels]
    want = np.mean(-((1 - right) ** gamma) * np.log(right))
    assert float(loss(Classify(gamma=gamma), given)) == pytest.approx(want, rel=1e-4)
    yes = np.eye(CLASSES)[labels] == 1
    right = np.where(yes, 1 / (1 + np.exp(-scores)), 1 / (1 + np.exp(scores)))
    table = -((1 - right) ** gamma) * np.log(right)
    for kind, sums in (("bce", table.mean()), ("sigmoid", table.sum(1).mean())):
        assert float(loss(Classify(kind=kind, gamma=gamma), given)) == pytest.approx(sums, rel=1e-4)


@pytest.mark.parametrize("kind", ["softmax", "bce"])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_of_soft_targets_is_least_at_the_targets(kind: Kind, gamma: float) -> None:
    targets = torch.tensor([[0.6, 0.3, 0.05, 0.05]])
    best = targets.log() if kind == "softmax" else targets.logit()
    objective = Classify(kind=kind, gamma=gamma)

    def at(scores: torch.Tensor) -> torch.Tensor:
        return loss(objective, batch_of(scores, targets))

    scores = best.clone().requires_grad_()
    at(scores).backward()
    assert scores.grad is not None
    assert float(scores.grad.abs().max()) < 1e-3
    for place in range(4):
        for move in (-0.5, 0.5):
            assert at(best + move * F.one_hot(torch.tensor([place]), 4)) > at(best)


@pytest.mark.parametrize("kind", ["softmax", "bce"])
def test_focal_loss_has_a_gradient_where_everything_is_right(kind: Kind) -> None:
    scores = (200.0 * F.one_hot(LABELS, CLASSES) - 100).requires_grad_()
    given = batch_of(scores, LABELS)
    loss(Classify(kind=kind, gamma=0.5), given).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


# What is decided


def test_auto_weighs_from_ten_times_on() -> None:
    auto = ObjectivePart(balance="auto", label_smoothing=0.1)
    even = SingleLabels(np.repeat([0, 1], [99, 10]))
    assert decided(auto, even, 2) == (ObjectivePart(label_smoothing=0.1), [])
    uneven = SingleLabels(np.repeat([0, 1], [100, 10]))
    options, lines = decided(auto, uneven, 2)
    assert options == ObjectivePart(balance="weights", label_smoothing=0.1)
    assert lines == [
        "the largest class has 10 times the images of the smallest: images are weighted by their "
        "class (--balance weights)"
    ]
    assert decided(auto, uneven, 3) == (options, lines)  # a class that has no images
    assert imbalance(uneven.counts(3)) == 10


def test_what_was_chosen_stays_and_none_gets_advice() -> None:
    for chosen in ("weights", "sampling", "focal"):
        options = ObjectivePart(balance=chosen)
        assert decided(options, UNEVEN, 4) == (options, [])
    options, lines = decided(ObjectivePart(), UNEVEN, 4)
    assert options == ObjectivePart()
    assert lines == [
        "the largest class has 50 times the images of the smallest: --balance weights, sampling or "
        "focal would make up for it"
    ]


def test_images_with_several_labels() -> None:
    bce = ObjectivePart(loss="bce")
    assert decided(replace(bce, balance="auto"), SEVERAL, 3) == (bce, [])
    with pytest.raises(OptionError) as caught:
        decided(replace(bce, balance="sampling"), SEVERAL, 3)
    assert str(caught.value) == (
        "balance=sampling draws images by their class, but these have several: use --balance "
        "weights, where classes are rare, or --balance focal, where most images are easy"
    )
    for advice in ("weights", "focal"):
        options = decided(replace(bce, balance=advice), SEVERAL, 3)[0]
        given = batch(torch.from_numpy(SEVERAL.batch()), 3)
        objective = objective_of(options, SEVERAL, 3)
        assert objective.loss(nn.Identity(), given, torch.Generator())[0] > 0


def test_options_of_one_treatment_need_it() -> None:
    with pytest.raises(OptionError, match=r"weight_beta=0\.9 applies only with balance=weights"):
        ObjectivePart(weight_beta=0.9)
    with pytest.raises(OptionError, match=r"focal_gamma=1\.0 applies only with balance=focal"):
        ObjectivePart(focal_gamma=1.0, balance="weights")
    softer = objective_of(ObjectivePart(balance="weights", weight_beta=0.9), UNEVEN, 4)
    assert isinstance(softer, Classify)
    assert softer.weights is not None
    np.testing.assert_array_equal(softer.weights, class_weights(UNEVEN, 4, 0.9))
    sharper = objective_of(ObjectivePart(balance="focal", focal_gamma=5.0), UNEVEN, 4)
    assert isinstance(sharper, Classify)
    assert (sharper.gamma, sharper.weights) == (5.0, None)
