"""The stem: images to patch tokens, (B, channels, H, W) -> (B, patches, width)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.layers import reset_dense
from vitlab.models.packed import Packed
from vitlab.models.registry import Component, kinds
from vitlab.models.stems.kernels import Filter


class Stem(Component, nn.Module):
    """Images to patch tokens in raster order: (B, channels, H, W) -> (B, patches, width).

    A subclass with a `name` is that value of `ViTConfig.stem`. Beside `forward`, it knows how its
    weights start, what it refuses, and whatever else of the methods below differs for it. One with
    buffers that are computed, not stored, has a `refresh` that fills them in place; one that can
    fold layers for inference, a `fuse`.

    Attributes:
        mixes: whether a token depends on pixels outside its patch; else a patch may come alone
    """

    field = "stem"
    mixes: bool = True

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config

    def packed(self, images: Packed) -> Tensor:
        """Return the patch tokens of images of different sizes, one after the other: (T, D)."""
        if self.mixes:
            return torch.cat([self(block).flatten(0, 1) for block in images.blocks()])
        side = images.patch
        return self(images.patches.unflatten(1, (-1, side, side))).flatten(0, 1)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight."""
        raise NotImplementedError

    @staticmethod
    def resized(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
        """Return the stem's tensors for another image size; most do not depend on it."""
        return tensors

    @staticmethod
    def repatched(
        tensors: dict[str, Tensor], config: ViTConfig, patch: int, interpolation: Filter
    ) -> dict[str, Tensor]:
        """Return the stem's tensors for another patch size.

        Args:
            tensors: by their names in this module
            config: the configuration that they fit
            patch: pixels per side
            interpolation: the filter that resizes patches

        Raises:
            OptionError: the stem is limited to its patch size.
        """
        raise OptionError(
            f"stem={config.stem} keeps patch={config.patch}: only stem=linear can be resampled"
        )


class Convolutions(Stem):
    """Convolutions one after the other, the last of them as wide as a token."""

    def __init__(self, config: ViTConfig, layers: Sequence[nn.Module]) -> None:
        super().__init__(config)
        self.layers = nn.Sequential(*layers)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw LeCun-normal kernels and zero biases, as the official code for its one layer."""
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                reset_dense(layer, generator)
            elif isinstance(layer, nn.BatchNorm2d | ChannelNorm | ChannelRMSNorm):
                layer.reset_parameters()

    def forward(self, images: Tensor) -> Tensor:
        """Cut images into patch tokens."""
        return self.layers(images).flatten(2).transpose(1, 2)

    def fuse(self) -> None:
        """Fold batch norms, with their running statistics, into the convolutions before them."""
        layers: list[nn.Module] = []
        for layer in self.layers:
            if isinstance(layer, nn.BatchNorm2d) and isinstance(layers[-1], nn.Conv2d):
                layers[-1] = fuse_conv_bn_eval(layers[-1], layer)
            else:
                layers.append(layer)
        self.layers = nn.Sequential(*layers)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each place of a map, (B, C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each place by itself."""
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ChannelRMSNorm(nn.RMSNorm):
    """RMSNorm over the channels of each place of a map, (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each place by itself."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def norm(config: ViTConfig, channels: int) -> list[nn.Module]:
    """Return the stem's norm over some channels; an empty list for none."""
    match config.stem_norm:
        case "none":
            return []
        case "batch":
            return [nn.BatchNorm2d(channels)]
        case "layer":
            kind = ChannelRMSNorm if config.norm == "rms" else ChannelNorm
            return [kind(channels, config.norm_eps)]


def stem_of(config: ViTConfig) -> type[Stem]:
    """Return the class of the stem that a configuration names."""
    kind = kinds("stem")[config.stem]
    assert issubclass(kind, Stem)
    return kind
