"""The regressor: a linear layer on a model's features whose outputs are numbers, with a spread."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.models.model import Model
from vitlab.values import check_names

TINY, MOST = 1e-6, 80.0  # the least variance of a standardized target, and the largest's logarithm
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Targets:
    """What a regressor answers: the names of its targets, and whether with a spread.

    Raises:
        OptionError: names that cannot be.
    """

    targets: tuple[str, ...]
    spread: bool

    def __post_init__(self) -> None:
        """Check the names."""
        check_names(self.targets, "target")


class Estimates(NamedTuple):
    """Numbers of images, (n, targets), and their standard deviations, if the regressor has any."""

    values: Doubles
    deviations: Doubles | None = None


@dataclass(frozen=True, eq=False)
class Regressor:
    """Numbers of images by a model's features.

    Attributes:
        model: whose features are seen
        about: its targets
        weight: of the linear layer, (outputs, features); outputs are the standardized values, then
            with a spread the logarithms of their variances
        bias: (outputs,)
        scale: mean and deviation of each target, (2, targets)
    """

    model: Model
    about: Targets
    weight: Doubles
    bias: Doubles
    scale: Doubles

    def estimates(self, features: NDArray[np.float32]) -> Estimates:
        """Return the numbers of images by their features, (n, features), in the targets' units."""
        outputs = torch.from_numpy(features.astype(np.float64) @ self.weight.T + self.bias)
        found = _in_units(outputs, self.about, torch.from_numpy(self.scale))
        return Estimates(*(each.numpy() for each in found))

    def tensors(self) -> dict[str, Tensor]:
        """Return the layer and the scale by name."""
        names = ("weight", "bias", "scale")
        return {name: torch.from_numpy(getattr(self, name)) for name in names}


class Estimating(nn.Module):
    """A regressor from normalized images, (B, channels, H, W), to values, (B, targets).

    With a spread, to their standard deviations too, as many.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor

    def __init__(self, regressor: Regressor) -> None:
        super().__init__()
        self.model = regressor.model
        self.about = regressor.about
        for name in ("weight", "bias", "scale"):
            self.register_buffer(name, torch.from_numpy(getattr(regressor, name)).float())

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Estimate the numbers of images."""
        return self.conclude(images, *self.evidence(images))

    def evidence(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features, and the outputs of the linear layer: (B, features), (B, outputs)."""
        features = self.model.features(images).flatten(1)
        return features, features @ self.weight.T + self.bias

    def conclude(self, images: Tensor, features: Tensor, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the numbers that `evidence` stands for."""
        return _in_units(outputs, self.about, self.scale)


def _in_units(outputs: Tensor, about: Targets, scale: Tensor) -> tuple[Tensor, ...]:
    """Return values, and deviations if there are any, (B, targets), in the targets' units."""
    count, (mean, deviation) = len(about.targets), scale
    values = outputs[:, :count] * deviation + mean
    if not about.spread:
        return (values,)
    return values, (outputs[:, count:].clamp(math.log(TINY), MOST) / 2).exp() * deviation
