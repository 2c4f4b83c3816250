"""The ResNets of the ViT paper as models of their own: BiT-R50x1 and its like, Axial-ResNet-50."""

import re
from collections.abc import Collection
from itertools import islice

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.layers import classifier, reset_classifier
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.models.resnets.axial import AxialBody
from vitlab.models.resnets.body import BiTBody


class ResNet(Model):
    """body -> mean over the last map -> linear classifier (ViT paper, section 4.1, ResNet (BiT)).

    Args:
        config: every choice of the architecture
        generator: source of the initial weights; None for PyTorch's default generator
    """

    config: ResNetConfig

    def build(self) -> None:
        """Create the modules that the configuration names."""
        config = self.config
        self.body: AxialBody | BiTBody = (
            AxialBody(config.stages, config.channels, config.size)
            if config.attention == "axial"
            else BiTBody(config.stages, config.channels, config.widen)
        )
        self.classify = classifier(config)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight, as the official code does."""
        self.body.reset_parameters(generator)
        reset_classifier(self.classify, self.config, generator)

    def scores(self, features: Tensor) -> Tensor:
        """Compute class scores: (B, features) -> (B, classes)."""
        return self.classify(features)

    @classmethod
    def regrid(
        cls, tensors: dict[str, Tensor], old: ResNetConfig, new: ResNetConfig
    ) -> dict[str, Tensor]:
        """Return the same tensors, or refuse an axial ResNet, whose positions hold for one size."""
        if old.attention == "axial":
            raise OptionError(
                f"{old.name} cannot be resized, since its relative positions hold for one size "
                f"only: keep image_size={old.image_size}"
            )
        return tensors

    @property
    def layers(self) -> int:
        """Number of the last layer, for layer-wise learning rates: everything after the units."""
        return sum(self.config.stages) + 1

    def layer_of(self, name: str) -> int:
        """Return how deep a parameter or module sits: the root is 0, the units count from 1."""
        if name.startswith("body.root"):
            return 0
        place = re.match(r"body\.stages\.(\d+)(?:\.(\d+))?", name)
        if place is None:
            return self.layers
        before, units = self.config.stages[: int(place[1])], self.config.stages[int(place[1])]
        # a whole stage: as its last unit
        return sum(before) + (int(place[2]) + 1 if place[2] else units)

    @property
    def last_layer(self) -> int:
        """Number of the last stage, as `intermediates` counts them."""
        return len(self.body.stages)

    def leaving(
        self, images: Tensor | Packed, layers: Collection[int], norm: bool
    ) -> dict[int, Tensor]:
        """Return the maps that leave these stages, (B, features, rows, columns) each."""
        assert not isinstance(images, Packed)
        values = self.body.enter(images)
        found = {0: values} if 0 in layers else {}
        for number, stage in enumerate(islice(self.body.stages, max((0, *layers))), 1):
            values = stage(values)
            if number in layers:
                final = norm and number == self.last_layer
                found[number] = self.body.finish(values) if final else values
        return found
