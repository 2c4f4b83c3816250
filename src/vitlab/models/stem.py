"""From images to patch tokens: (B, channels, H, W) -> (B, patches, width), in raster order."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from vitlab.models.block import Block
from vitlab.models.config import ViTConfig
from vitlab.models.init import reset_dense
from vitlab.models.resnets.body import HYBRID, TIMM, HybridBody


def build_stem(config: ViTConfig) -> "Stem":
    """The stem that the configuration names."""
    match config.stem:
        case "linear":
            return ConvStem(config, linear(config))
        case "hmlp":
            return ConvStem(config, hmlp(config))
        case "conv":
            return ConvStem(config, levit(config))
        case "local":
            return LocalStem(config)
        case "resnet":
            return ResNetStem(config)


class ConvStem(nn.Module):
    """Convolutions one behind the other, the last of them as wide as a token."""

    def __init__(self, config: ViTConfig, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """LeCun-normal kernels, zero biases, as the official code starts its one convolution."""
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                reset_dense(layer, generator)
            elif isinstance(layer, nn.BatchNorm2d | ChannelNorm):
                layer.reset_parameters()

    def forward(self, images: Tensor) -> Tensor:
        """Images to patch tokens."""
        return self.layers(images).flatten(2).transpose(1, 2)


def linear(config: ViTConfig) -> nn.Sequential:
    """One linear map of every flattened patch (ViT paper, equation 1), as a strided convolution.

    A norm and a GELU behind it give the other linear rows of Three things, Table 7.
    """
    return nn.Sequential(
        nn.Conv2d(config.channels, config.width, config.patch, config.patch, bias=config.stem_bias),
        *norm(config, config.width),
        *([nn.GELU()] if config.stem_act == "gelu" else []),
    )


def hmlp(config: ViTConfig) -> nn.Sequential:
    """Hierarchical MLP stem: 4x4 patches, then doubled (Three things, section 5 and Figure 5).

    Every convolution's stride is its kernel, so patches never mix, and masking a patch's pixels or
    its token come to the same. Widths D/4, D/4, …, D; no GELU behind the last norm.
    """
    width, steps = config.width, int(math.log2(config.patch)) - 2
    layers: list[nn.Module] = [nn.Conv2d(config.channels, width // 4, 4, 4)]
    for step in range(steps):
        wide = width if step == steps - 1 else width // 4
        layers += [*norm(config, width // 4), nn.GELU(), nn.Conv2d(width // 4, wide, 2, 2)]
    return nn.Sequential(*layers, *norm(config, width))


def levit(config: ViTConfig) -> nn.Sequential:
    """LeViT's convolutions, 3x3 with stride 2, the width doubled each time (Graham et al., 2021).

    GELU between, as Three things has them (Table 7); biases only where no norm follows.
    """
    steps = int(math.log2(config.patch))
    layers: list[nn.Module] = []
    narrow = config.channels
    for step in range(steps):
        wide = config.width >> (steps - 1 - step)
        plain = config.stem_norm == "none"
        layers += [nn.Conv2d(narrow, wide, 3, 2, 1, bias=plain), *norm(config, wide), nn.GELU()]
        narrow = wide
    return nn.Sequential(*layers[:-1])


def norm(config: ViTConfig, channels: int) -> list[nn.Module]:
    """The stem's norm over so many channels; an empty list for none."""
    match config.stem_norm:
        case "none":
            return []
        case "batch":
            return [nn.BatchNorm2d(channels)]
        case "layer":
            return [ChannelNorm(channels, config.norm_eps)]


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each place of a map, (B, C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """Each place by itself."""
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class LocalStem(nn.Module):
    """A small Transformer within every patch, over 4x4 words of its pixels (TNT; Table 7).

    Pixels become words by a 7x7 convolution over the whole image, a patch's sixteen words attend to
    each other, and are mapped to one token. Three things prints this row's cost alone; an inner
    width of D/8, four blocks and four heads meet it (19.1 GMACs for ViT-B/16).
    """

    DEPTH, HEADS, WORDS = 4, 4, 4

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        inner = config.width // 8
        self.grid, self.side = config.grid, config.patch // self.WORDS
        self.pixels = nn.Conv2d(config.channels, inner, 7, self.side, 3)
        self.places = nn.Parameter(torch.empty(1, self.WORDS**2, inner))
        words = ViTConfig(
            width=inner,
            depth=self.DEPTH,
            heads=self.HEADS,
            mlp=4 * inner,
            patch=1,
            image_size=self.WORDS,
            gelu=config.gelu,
            norm_eps=config.norm_eps,
            pool="mean",
        )
        self.blocks = nn.ModuleList(Block(words) for _ in range(self.DEPTH))
        self.norm_words = nn.LayerNorm(inner, config.norm_eps)
        self.project = nn.Linear(self.WORDS**2 * inner, config.width)
        self.norm_tokens = nn.LayerNorm(config.width, config.norm_eps)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """As the encoder's own parts start."""
        reset_dense(self.pixels, generator)
        nn.init.normal_(self.places, std=0.02, generator=generator)
        for block in self.blocks:
            cast(Block, block).reset_parameters(generator)
        reset_dense(self.project, generator)
        self.norm_words.reset_parameters()
        self.norm_tokens.reset_parameters()

    def forward(self, images: Tensor) -> Tensor:
        """Images to patch tokens."""
        (rows, columns), n = self.grid, self.WORDS
        words = self.pixels(images)[..., : rows * n, : columns * n]  # (B, c, rows 4, columns 4)
        words = words.unflatten(2, (rows, n)).unflatten(4, (columns, n))
        words = words.permute(0, 2, 4, 3, 5, 1).reshape(-1, n * n, words.shape[1])
        words = words + self.places
        for block in self.blocks:
            words = block(words)
        tokens = self.project(self.norm_words(words).flatten(1))
        return self.norm_tokens(tokens.unflatten(0, (-1, rows * columns)))


class ResNetStem(nn.Module):
    """The hybrids' stem: a ResNet's map, cut into patches, often of one place (4.1, Hybrid)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        flavor = {"google": HYBRID, "timm": TIMM}[config.resnet]
        self.body = HybridBody(config.stages, config.channels, flavor)
        side = config.patch // self.body.stride
        self.project = nn.Conv2d(self.body.features, config.width, side, side)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """As the official code starts them."""
        self.body.reset_parameters(generator)
        reset_dense(self.project, generator)

    def forward(self, images: Tensor) -> Tensor:
        """Images to patch tokens."""
        return self.project(self.body(images)).flatten(2).transpose(1, 2)


Stem = ConvStem | LocalStem | ResNetStem
