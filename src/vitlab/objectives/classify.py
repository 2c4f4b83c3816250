"""Supervised classification."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.loader import Batch


@dataclass(frozen=True)
class Classify:
    """Softmax cross-entropy against the labels, smoothed by `label_smoothing`."""

    label_smoothing: float = 0.0

    def loss(
        self, model: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of a batch of normalised images, and how many it got right.

        Args:
            model: images (B, channels, H, W) to scores (B, classes)
            batch: images float, labels (B,)
            generator: for objectives that draw random numbers; this one does not
        """
        scores = model(batch.images)
        loss = F.cross_entropy(scores.float(), batch.labels, label_smoothing=self.label_smoothing)
        return loss, {"correct": (scores.argmax(-1) == batch.labels).sum()}
