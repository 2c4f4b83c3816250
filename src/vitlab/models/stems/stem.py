"""The stem: images to patch tokens, (B, channels, H, W) -> (B, patches, width).

The stems of a few convolutions are here: linear, hmlp and conv. The others have files of their own.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vitlab.errors import OptionError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.layers import reset_dense
from vitlab.models.packed import Packed
from vitlab.models.registry import Component, kind_named
from vitlab.on_device import exact

Filter = Literal["bilinear", "bicubic"]


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


class Linear(Convolutions):
    """One linear map of every flattened patch (ViT paper, equation 1), as a strided convolution.

    A norm and a GELU after it give the other linear rows of Three things, Table 7.
    """

    name = "linear"

    def __init__(self, config: ViTConfig) -> None:
        channels, width, patch = config.channels, config.width, config.patch
        act = [nn.GELU()] if config.stem_act == "gelu" else []
        step = config.stem_stride or patch
        layer = nn.Conv2d(channels, width, patch, step, bias=config.stem_bias)
        super().__init__(config, [layer, *norm(config, width), *act])
        self.mixes = config.stem_stride > 0  # which moves the kernel across patches

    @staticmethod
    def repatched(
        tensors: dict[str, Tensor], config: ViTConfig, patch: int, interpolation: Filter
    ) -> dict[str, Tensor]:
        """Resample the kernel by the pseudo-inverse; all else does not depend on the patch."""
        if config.stem_stride:
            raise OptionError("stem_stride keeps the patch as it is: set stem_stride=0")
        kernel = resample_kernels(tensors["layers.0.weight"], patch, interpolation)
        return tensors | {"layers.0.weight": kernel}

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse strides with gaps or without tiles."""
        if config.stem_stride > config.patch:
            raise OptionError(
                f"stem_stride={config.stem_stride} must be at most patch={config.patch}"
            )
        if config.stem_stride and config.fit == "native":
            raise OptionError("stem_stride needs images of one size: fit=crop")


def resample_kernels(weight: Tensor, patch: int, interpolation: Filter = "bilinear") -> Tensor:
    """Return patch kernels for another patch size: (D, C, P, P) -> (D, C, patch, patch).

    With B the linear map that resizes a patch, antialiased, the new kernel is the pseudo-inverse of
    B's transpose times the old one: the least-squares solution of <B x, new> = <x, old>, exact
    where patches become larger (PI-resize; Beyer et al., FlexiViT, 2023, section 3.4).

    Args:
        weight: the kernels, square
        patch: pixels per side
        interpolation: the filter of B: bilinear, as in big_vision (flexi/vit.py), or bicubic, as
            timm has it
    """
    old = weight.shape[-1]
    if old == patch:
        return weight
    single = torch.eye(old * old).unflatten(1, (1, old, old))  # each pixel by itself
    resized = F.interpolate(single, (patch, patch), mode=interpolation, antialias=True)
    inverse = torch.linalg.pinv(resized.flatten(1).double())  # (patch², old²)
    wide = exact(weight).flatten(2)
    return (wide @ inverse.T.to(wide.device)).unflatten(2, (patch, patch)).to(weight)


class HierarchicalMLP(Convolutions):
    """4x4 patches, then doubled until they are whole (Three things, section 5 and Figure 5).

    Every convolution's stride is its kernel, so patches never mix, and masking a patch's pixels or
    its token is the same. Widths D/4, D/4, …, D; no GELU after the last norm.
    """

    name = "hmlp"
    usual_norm = "batch"
    mixes = False

    def __init__(self, config: ViTConfig) -> None:
        width, steps = config.width, int(math.log2(config.patch)) - 2
        layers: list[nn.Module] = [nn.Conv2d(config.channels, width // 4, 4, 4)]
        for step in range(steps):
            wide = width if step == steps - 1 else width // 4
            layers += [*norm(config, width // 4), nn.GELU(), nn.Conv2d(width // 4, wide, 2, 2)]
        super().__init__(config, [*layers, *norm(config, width)])

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse patches that are not 4 doubled, and widths that 4 does not divide."""
        if config.patch < 8 or not math.log2(config.patch).is_integer():
            raise OptionError(f"stem=hmlp needs a patch of 8, 16, 32, …, not {config.patch}")
        if config.width % 4:
            raise OptionError(
                f"stem=hmlp needs a width that is a multiple of 4, not {config.width}"
            )


class LeViT(Convolutions):
    """3x3 convolutions with stride 2, the width doubled each time (Graham et al., 2021).

    GELU between, as Three things has them (Table 7); biases only where no norm follows.
    """

    name = "conv"
    usual_norm = "batch"

    def __init__(self, config: ViTConfig) -> None:
        steps, bias = int(math.log2(config.patch)), config.stem_norm == "none"
        layers: list[nn.Module] = []
        narrow = config.channels
        for step in range(steps):
            wide = config.width >> (steps - 1 - step)
            layers += [nn.Conv2d(narrow, wide, 3, 2, 1, bias=bias), *norm(config, wide), nn.GELU()]
            narrow = wide
        super().__init__(config, layers[:-1])

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse patches that are not a power of 2, and widths that cannot be halved as often."""
        if config.patch < 2 or not math.log2(config.patch).is_integer():
            raise OptionError(f"stem=conv needs a patch of 2, 4, 8, …, not {config.patch}")
        if config.width % (parts := config.patch // 2):
            raise OptionError(
                f"stem=conv with patch={config.patch} needs a width that is a multiple of {parts}, "
                f"not {config.width}"
            )


def stem_of(config: ViTConfig) -> type[Stem]:
    """Return the class of the stem that a configuration names."""
    kind = kind_named("stem", config.stem)
    assert issubclass(kind, Stem)
    return kind
