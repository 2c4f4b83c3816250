"""Supervised classification."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.augment.mix import dense
from vitlab.data.labels import Labels
from vitlab.data.loading.batches import Batch
from vitlab.errors import OptionError


@dataclass(frozen=True)
class Classify:
    """Cross-entropy of class scores: of one label per image, a mixture of two, or any number.

    Attributes:
        label_smoothing: share of the target spread over all classes
        kind: `softmax`, cross-entropy; `bce`, one sigmoid per class, averaged over classes (A2:
            Wightman et al., 2021); `sigmoid`, the same summed over classes (ViT paper, as released)
        threshold: with a sigmoid, targets above it become 1 and all others 0; 0 makes each class
            that was mixed in a full target, as A2 does (None: soft targets)
    """

    label_smoothing: float = 0.0
    kind: Literal["softmax", "bce", "sigmoid"] = "softmax"
    threshold: float | None = None

    def check(self, labels: Labels) -> None:
        """See that such labels can be learned with this loss.

        Raises:
            OptionError: several labels per image with a softmax, which expects one.
        """
        if labels.several and self.kind == "softmax":
            raise OptionError("images with several labels need --loss bce or --loss sigmoid")

    def loss(
        self, model: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
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
