"""The interface between the trainer and a loss."""

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from vitlab.data.labels import Labels
from vitlab.data.loading.batches import Batch
from vitlab.objectives.balance import class_weights
from vitlab.objectives.classify import Classify, Loss
from vitlab.recipes import choices


class Objective(Protocol):
    """A loss of a model on a batch.

    Attributes:
        figures: names of what `loss` adds up beside the loss, in the journal's order
    """

    figures: ClassVar[tuple[str, ...]]

    def check(self, labels: Labels) -> None:
        """See that images with such labels can be learned from, before training starts.

        Raises:
            OptionError: they cannot be, with what would work.
        """

    def loss(
        self, model: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss of a batch, and its metrics.

        Args:
            model: images (B, channels, H, W) to its outputs
            batch: normalized images, float (B, channels, H, W), and their labels, int64 (B,) or
                shares of each class, float (B, classes)
            generator: the only source of random numbers, on the model's device

        Returns:
            The loss, and the sum over the batch of each of `figures`: `correct`, how many images
            it got right.
        """


def objective_of(
    options: choices.Objective,
    labels: Labels | None = None,
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
