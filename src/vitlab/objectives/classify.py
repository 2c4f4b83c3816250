"""Classification losses: cross-entropy of one label or several, weighted, focal, or one's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.augment.mix import dense
from vitlab.data.loading.batch import Batch
from vitlab.data.target import Target
from vitlab.errors import OptionError
from vitlab.objectives.balance import class_weights
from vitlab.objectives.pretext_task import LossFigures
from vitlab.on_device import sent
from vitlab.recipes.losses import LossName, ObjectivePart

Loss = Callable[[Tensor, Tensor], Tensor]
"""Scores (B, classes) and targets (B, classes) -> the loss of each image, (B,), or their mean."""

TINY = 1e-6  # below it a power of a distance has no slope: that of a root would be infinite


@dataclass(frozen=True, eq=False)
class Classify:
    """Cross-entropy of class scores: of one label per image, a mixture of two, or any number.

    Attributes:
        label_smoothing: share of the target spread over all classes
        kind: `softmax`, cross-entropy; `bce`, one sigmoid per class, averaged over classes (A2:
            Wightman et al., 2021); `sigmoid`, the same summed over classes (ViT paper, as released)
        threshold: with a sigmoid, targets above it become 1 and all others 0; 0 makes each class
            that was mixed in a full target, as A2 does (None: soft targets)
        weights: how much images count, from `class_weights`: (classes,), each image as its class
            does, and a mixture as its classes do by their shares; (2, classes), for several labels
            per image, the weights of "no" and of "yes" (None: all alike)
        gamma: each class's share of the loss is multiplied by |target - probability|^gamma (None:
            by 1). For full targets this is the focal loss (Lin et al., 2017, eq. 4, without
            alpha); for smoothed and mixed ones its extension by Li et al. (Generalized Focal Loss,
            2020, eq. 4), which is least where the probabilities are the targets
        own: the user's function in place of all that, but for label smoothing, mixing and the
            threshold, which have made its targets
    """

    figures: ClassVar[tuple[str, ...]] = ("correct",)

    label_smoothing: float = 0.0
    kind: LossName = "softmax"
    threshold: float | None = None
    weights: NDArray[np.float32] | None = None
    gamma: float | None = None
    own: Loss | None = None

    def check(self, labels: Target) -> None:
        """See that such labels can be learned with this loss.

        Raises:
            OptionError: several labels per image with a softmax, which expects one.
        """
        if labels.several and self.kind == "softmax" and self.own is None:
            raise OptionError(
                "images with several labels need --loss bce, which suits most data (the mean over "
                "classes), or --loss sigmoid, as in the ViT paper (their sum, and so larger steps)"
            )

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the mean loss of a batch, and `correct`, the number of images it got right.

        An image counts as right if the class of the highest score is its own; of a mixture, the one
        with the larger share; of several labels, one of them.

        Args:
            model: images (B, channels, H, W) to scores (B, classes)
            batch: normalized images, and labels int64 (B,) or float (B, classes)
            generator: unused, for nothing is drawn
        """
        del generator
        scores = model(batch.images)
        figures = {"correct": self.correct(scores, batch.labels)}
        return self.mean(scores.float(), batch.labels), figures

    @staticmethod
    def correct(scores: Tensor, labels: Tensor) -> Tensor:
        """Return how many of the scores (B, classes) are right, as `loss` counts them, int64 ()."""
        best = scores.argmax(-1)
        if labels.ndim == 1:
            return (best == labels).sum()
        return (labels.gather(1, best[:, None])[:, 0] == labels.amax(-1)).sum()

    def mean(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of scores, float32 (B, classes), with labels as `loss` takes them.

        It is divided by the number of images, not by their weight, so that the losses of the passes
        and the processes that share a batch add up to the batch's.

        Raises:
            OptionError: what the user's own loss returns cannot be a loss.
        """
        if self.own is not None:
            return _own_mean(self.own, scores, self._targets(dense(labels, scores.shape[-1])))
        plain = self.weights is None and self.gamma is None
        if plain and self.kind == "softmax":
            return F.cross_entropy(scores, labels, label_smoothing=self.label_smoothing)
        classes = scores.shape[-1]
        shares = dense(labels, classes)
        targets = self._targets(shares)
        if plain:
            mean = F.binary_cross_entropy_with_logits(scores, targets)
        else:
            table = self._table(scores, targets)
            if self.weights is not None:
                table = table * self._counted(shares, self.weights)
            mean = table.sum(-1).mean() / classes
        return mean if self.kind == "bce" else mean * classes

    def _targets(self, shares: Tensor) -> Tensor:
        """Return what each class should score, (B, classes)."""
        smooth = self.label_smoothing
        targets = shares if self.threshold is None else (shares > self.threshold).float()
        return targets * (1 - smooth) + smooth / targets.shape[-1] if smooth else targets

    def _table(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return each class's share of the loss of each image, (B, classes)."""
        if self.kind == "softmax":
            chances, table = scores.softmax(-1), -targets * scores.log_softmax(-1)
        else:
            chances = scores.sigmoid()
            table = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
        if self.gamma is not None:
            table = table * (targets - chances).abs().clamp_min(TINY) ** self.gamma
        return table

    @staticmethod
    def _counted(shares: Tensor, weights: NDArray[np.float32]) -> Tensor:
        """Return how much each image counts, (B, 1), or each class of it, (B, classes)."""
        own = sent(torch.from_numpy(weights), shares.device)
        if own.ndim == 1:
            return (shares @ own)[:, None]
        return (1 - shares) * own[0] + shares * own[1]


def _own_mean(loss: Loss, scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of a user's own loss, computed in float32 whatever the run's precision."""
    with torch.autocast(scores.device.type, enabled=False):
        found = loss(scores, targets)
    if not isinstance(found, Tensor):
        raise OptionError(f"loss must return a tensor, not a {type(found).__name__}")
    if found.shape not in ((), scores.shape[:1]) or not found.is_floating_point():
        kind = str(found.dtype).removeprefix("torch.")
        raise OptionError(
            f"loss must return one number for each image, float32 ({len(scores)},), or their mean, "
            f"not {kind} {tuple(found.shape)}"
        )
    if torch.is_grad_enabled() and scores.requires_grad and not found.requires_grad:
        raise OptionError("what loss returns does not depend on the scores: nothing is learned")
    return found.float().mean()


def objective_of(
    options: ObjectivePart,
    labels: Target | None = None,
    classes: int = 0,
    own: Loss | None = None,
) -> Classify:
    """Return the objective that a recipe asks for.

    Args:
        options: what is minimized, `balance=auto` being decided
        labels: of the training images, which `balance=weights` counts
        classes: their number
        own: the user's function in place of the recipe's loss
    """
    weights = gamma = None
    if options.balance == "weights" and labels is not None:
        weights = class_weights(labels, classes, options.weight_beta)
    elif options.balance == "focal":
        gamma = options.focal_gamma
    smoothing, loss, threshold = options.label_smoothing, options.loss, options.bce_threshold
    return Classify(smoothing, loss, threshold, weights, gamma, own)
