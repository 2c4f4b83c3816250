"""Supervised classification."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.augment.mix import dense
from vitlab.data.loading.loader import Batch
from vitlab.errors import UserError


@dataclass(frozen=True)
class Classify:
    """Scores against labels, of which an image may have one, a mixture, or any number.

    Attributes:
        label_smoothing: share of the target spread over all classes
        kind: `softmax`, cross-entropy; `bce`, one sigmoid a class, averaged over classes (A2:
            Wightman et al., 2021); `sigmoid`, the same summed over classes (ViT paper, as released)
        threshold: with a sigmoid, targets above it become 1 and all others 0; A2's 0 asks for each
            class that was mixed in (None: shares stay as they are)
    """

    label_smoothing: float = 0.0
    kind: Literal["softmax", "bce", "sigmoid"] = "softmax"
    threshold: float | None = None

    def check(self, labels: Any) -> None:
        """See that labels, (N,) or (N, classes), can be learned with this loss.

        Raises:
            ValueError: any number of labels an image with a softmax, which asks for one.
        """
        if labels.ndim > 1 and self.kind == "softmax":
            raise UserError("images with any number of labels need --loss bce or sigmoid")

    def loss(
        self, model: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of a batch of normalized images, and how many it got right.

        An image counts as right where the class of the highest score is its own; of a mixture, the
        one with the larger share; of any number of labels, one of them.

        Args:
            model: images (B, channels, H, W) to scores (B, classes)
            batch: images float, labels int64 (B,) or float (B, classes)
            generator: for objectives that draw random numbers; this one does not
        """
        scores = model(batch.images)
        labels, best = batch.labels, scores.argmax(-1)
        if labels.ndim == 1:
            correct = best == labels
        else:
            correct = labels.gather(1, best[:, None])[:, 0] == labels.amax(-1)
        if self.kind == "softmax":
            loss = F.cross_entropy(scores.float(), labels, label_smoothing=self.label_smoothing)
        else:
            loss = self._sigmoid(scores.float(), labels)
        return loss, {"correct": correct.sum()}

    def _sigmoid(self, scores: Tensor, labels: Tensor) -> Tensor:
        targets, smooth = dense(labels, scores.shape[-1]), self.label_smoothing
        if self.threshold is not None:
            targets = (targets > self.threshold).float()
        if smooth:
            targets = targets * (1 - smooth) + smooth / targets.shape[-1]
        mean = F.binary_cross_entropy_with_logits(scores, targets)
        return mean if self.kind == "bce" else mean * scores.shape[-1]
