"""Losses against PyTorch's and timm's, by hand, and what counts as right."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from objectives.made import batch_of, seeded
from oracles.peers import timm
from vitlab.data.augment.mix import Mix
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError
from vitlab.objectives.classify import Classify

CLASSES = 5
GENERATOR = torch.Generator()


def batch(labels: torch.Tensor, seed: int = 0) -> Batch:
    """Images that an identity takes for scores."""
    return batch_of(torch.randn(len(labels), CLASSES, generator=seeded(seed)) * 3, labels)


def loss(objective: Classify, given: Batch) -> torch.Tensor:
    return objective.loss(nn.Identity(), given, GENERATOR)[0]


def mixed_labels(share: float = 0.7) -> torch.Tensor:
    labels = torch.tensor([0, 1, 3, 3, 4, 2])
    return Mix(share, None)(torch.zeros(6, 1, 1, 1), labels, CLASSES)[1]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_of_mixed_labels_is_timms(smoothing: float) -> None:
    timm()
    from timm.data.mixup import mixup_target
    from timm.loss import SoftTargetCrossEntropy

    labels = torch.tensor([0, 3, 1])
    given = batch(torch.cat([labels, labels.flip(0)]))
    targets = mixup_target(given.labels, CLASSES, 0.6, smoothing)
    want = SoftTargetCrossEntropy()(given.images, targets)
    plain = mixup_target(given.labels, CLASSES, 0.6, 0.0)
    mixed = Batch(given.images, plain, given.draws, given.indices)
    torch.testing.assert_close(loss(Classify(smoothing), mixed), want)


def test_a2_asks_for_both_mixed_classes() -> None:
    """Timm's and DeiT's loss: targets above 0 are 1, the mean over images and classes."""
    timm()
    from timm.loss import BinaryCrossEntropy

    given = batch(mixed_labels())
    want = BinaryCrossEntropy(smoothing=0, target_threshold=0)(given.images, given.labels)
    got = loss(Classify(0.0, "bce", 0.0), given)
    torch.testing.assert_close(got, want)
    by_hand = F.softplus(given.images) - given.images * (given.labels > 0)
    torch.testing.assert_close(got, by_hand.mean())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_soft_targets_and_one_label(smoothing: float) -> None:
    timm()
    from timm.loss import BinaryCrossEntropy

    given = batch(torch.tensor([0, 1, 4, 2]))
    want = BinaryCrossEntropy(smoothing=smoothing)(given.images, given.labels)
    torch.testing.assert_close(loss(Classify(smoothing, "bce"), given), want)
    mixed = batch(mixed_labels())
    want = F.binary_cross_entropy_with_logits(mixed.images, mixed.labels)
    torch.testing.assert_close(loss(Classify(0.0, "bce"), mixed), want)


def test_the_vit_paper_s_sigmoid_sums_over_classes() -> None:
    given = batch(mixed_labels())
    chance = given.images.sigmoid()
    each = given.labels * chance.log() + (1 - given.labels) * (1 - chance).log()
    torch.testing.assert_close(
        loss(Classify(0.0, "sigmoid"), given), -each.sum(1).mean(), rtol=1e-4, atol=1e-5
    )


def test_any_number_of_labels_needs_a_sigmoid() -> None:
    labels = torch.tensor([[1.0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
    several = MultiLabels.of_table(labels.numpy().astype(np.uint8))
    kinds: tuple[Literal["bce", "sigmoid"], ...] = ("bce", "sigmoid")
    for kind in kinds:
        Classify(kind=kind).check(several)
    Classify().check(SingleLabels(np.array([1, 2])))
    with pytest.raises(OptionError) as error:
        Classify().check(several)
    assert str(error.value) == (
        "images with several labels need --loss bce, which suits most data (the mean over "
        "classes), or --loss sigmoid, as in the ViT paper (their sum, and so larger steps)"
    )
    want = F.binary_cross_entropy_with_logits(batch(labels).images, labels)
    torch.testing.assert_close(loss(Classify(kind="bce"), batch(labels)), want)


def test_right_is_the_class_with_the_largest_share() -> None:
    labels = torch.tensor([[0.7, 0.3, 0, 0, 0]] * 2 + [[1.0, 0, 1, 0, 0]] * 2 + [[0, 1.0, 0, 0, 0]])
    scores = F.one_hot(torch.tensor([0, 1, 2, 3, 1]), CLASSES).float()
    given = batch_of(scores, labels)
    _, metrics = Classify(kind="bce").loss(nn.Identity(), given, GENERATOR)
    assert metrics["correct"] == 3
    given = batch_of(scores, torch.tensor([0, 0, 2, 2, 2]))
    _, metrics = Classify().loss(nn.Identity(), given, GENERATOR)
    assert metrics["correct"] == 2
