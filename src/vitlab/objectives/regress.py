"""Regression: numbers of images by a linear layer, with L2, Huber or Gaussian losses.

Targets are standardized, by mean and deviation of the training images, so that all count alike and
one learning rate serves all units. `gaussian` learns a variance beside each value, by the negative
log-likelihood (Nix & Weigend, Estimating the mean and variance of the target probability
distribution, 1994); `huber` is linear beyond one deviation (Huber, 1964).
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.loading.batch import Batch
from vitlab.data.number_targets import NumberTargets
from vitlab.data.target import Target
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.heads.regress import TINY, Regressor, Targets
from vitlab.models.model import Model
from vitlab.objectives.pretext_task import LossFigures, PretextTask
from vitlab.recipes.losses import LossName
from vitlab.recipes.pretext import Pretext


class Regress(PretextTask):
    """Predict the numbers of images, which are the labels of a batch: `NumberTargets`.

    Args:
        options: of the recipe
        config: of the model
        loss: what is minimized
        first: rows of weight and bias that the layer begins with, of values, then of logarithms of
            variances; None for zeros: the mean of the training images, and their variance
    """

    figures: ClassVar[tuple[str, ...]] = ("target_error",)

    def __init__(
        self,
        options: Pretext,
        config: ModelConfig,
        loss: LossName = "l2",
        first: dict[str, list[Any]] | None = None,
    ) -> None:
        super().__init__(options, config)
        self.kind, spread = loss, loss == "gaussian"  # one of the losses of numbers
        self.first = first
        self.about = Targets(options.columns, spread)
        self.head = nn.Linear(config.features, len(options.columns) * (1 + spread))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Begin with the rows of `first`, or zeros."""
        for name, own in self.head.named_parameters():
            nn.init.zeros_(own)
            if self.first is not None:
                own.data.copy_(torch.tensor(self.first[name][: len(own)]))

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the loss, the mean over images and targets, and `target_error`.

        That is the mean absolute error over the targets, in deviations of each.
        """
        del generator  # nothing is drawn
        features = model.features(batch.images).flatten(1).float()
        with torch.autocast(features.device.type, enabled=False):  # whatever the model computes in
            outputs = self.head(features)
        error = (outputs[:, : batch.labels.shape[1]] - batch.labels).abs()
        found = target_loss(outputs, batch.labels, self.kind)
        return found, {"target_error": error.mean(1).sum()}

    def answering(self, model: Model, labels: Target) -> Regressor:
        """Return what answers in the units of the training images' labels."""
        assert isinstance(labels, NumberTargets)
        weight, bias = (
            each.detach().double().cpu().numpy() for each in (self.head.weight, self.head.bias)
        )
        return Regressor(model, self.about, weight, bias, labels.scale)


def target_loss(outputs: Tensor, targets: Tensor, kind: LossName) -> Tensor:
    """Return the mean loss of standardized targets, (B, targets).

    Args:
        outputs: values, (B, targets); with `gaussian` then logarithms of variances, as many
        targets: of the images
        kind: `l2`, the squared error; `huber`, half of it up to 1, linear beyond; `gaussian`, the
            negative log-likelihood
    """
    if kind == "l2":
        return F.mse_loss(outputs, targets)
    if kind == "huber":
        return F.huber_loss(outputs, targets)
    values, spread = outputs.chunk(2, 1)
    spread = spread.clamp(min=math.log(TINY))
    squares = (values - targets).square() * (-spread).exp()
    return (squares + spread + math.log(2 * math.pi)).mean() / 2
