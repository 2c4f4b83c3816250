"""Encoders and decoders of discrete VAEs: of strided convolutions (dVAE), or of groups (DALL-E).

The strided ones have the layers and the order of lucidrains/DALLE-pytorch (`DiscreteVAE`), and
start as PyTorch starts them, as they do there. The others are those of openai/DALL-E (encoder.py,
decoder.py, utils.py): groups of residual bottlenecks, pooled or enlarged between groups; kernels
start normal with a variance of 1 / fan-in, biases at zero.
"""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.layers import modules

ENCODING, DECODING = (3, 3, 3, 1), (1, 3, 3, 3)  # kernels of a bottleneck


class Residual(nn.Module):
    """Two 3x3 convolutions and a 1x1 one, ReLU between them, beside a shortcut.

    (B, width, rows, columns), as it enters.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolutions = modules(
            nn.Conv2d(width, width, kernel, padding=kernel // 2) for kernel in (3, 3, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Add what the convolutions make of a map."""
        first, second, third = self.convolutions
        return features + third(F.relu(second(F.relu(first(features)))))


class StridedEncoder(nn.Module):
    """Images, (B, channels, H, W), to the map that codes are told from, (B, width, rows, columns).

    Each strided convolution halves the sides; the residual blocks follow the last one.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        inputs = [config.channels] + [config.width] * (config.halvings - 1)
        self.reduce = modules(nn.Conv2d(each, config.width, 4, 2, 1) for each in inputs)
        self.residual = modules(Residual(config.width) for _ in range(config.depth))

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return the images, then what leaves each halving, the last with the residual blocks."""
        found = [images]
        for layer in self.reduce:
            found.append(F.relu(layer(found[-1])))
        for block in self.residual:
            found[-1] = block(found[-1])
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Compute the last map."""
        return self.maps(images)[-1]


class StridedDecoder(nn.Module):
    """Codes, (B, code width, rows, columns), to (B, outputs, H, W): the encoder's mirror."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        width, entered = config.width, config.width if config.depth else config.code_width
        self.enter = nn.Conv2d(config.code_width, width, 1) if config.depth else None
        self.residual = modules(Residual(width) for _ in range(config.depth))
        inputs = [entered] + [width] * (config.halvings - 1)
        self.enlarge = modules(nn.ConvTranspose2d(each, width, 4, 2, 1) for each in inputs)
        self.leave = nn.Conv2d(width, config.outputs, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Decode embedded codes."""
        if self.enter is not None:
            features = self.enter(features)
        for block in self.residual:
            features = block(features)
        for layer in self.enlarge:
            features = F.relu(layer(features))
        return self.leave(features)


class Bottleneck(nn.Module):
    """Four convolutions, a ReLU before each, at a quarter of the width; beside a shortcut.

    (B, inputs, rows, columns) to (B, width, rows, columns).

    Args:
        inputs: channels that enter
        width: channels that leave, a multiple of 4
        kernels: sides of the four kernels
        gain: what the branch is multiplied by, 1 / (number of bottlenecks)^2
    """

    def __init__(self, inputs: int, width: int, kernels: Sequence[int], gain: float) -> None:
        super().__init__()
        self.shortcut = nn.Conv2d(inputs, width, 1) if inputs != width else None
        inner = width // 4
        shapes = zip((inputs, inner, inner, inner), (inner, inner, inner, width), strict=True)
        self.convolutions = modules(
            nn.Conv2d(enters, leaves, side, padding=side // 2)
            for (enters, leaves), side in zip(shapes, kernels, strict=True)
        )
        self.gain = gain

    def forward(self, features: Tensor) -> Tensor:
        """Add the scaled branch to the shortcut."""
        branch = features
        for layer in self.convolutions:
            branch = layer(F.relu(branch))
        shortcut = features if self.shortcut is None else self.shortcut(features)
        return shortcut + self.gain * branch


def _groups(
    config: TokenizerConfig, inputs: int, widths: Sequence[int], kernels: Sequence[int]
) -> Sequence[Sequence[Bottleneck]]:
    """Return the bottlenecks of each group."""
    gain = 1 / (len(widths) * config.depth) ** 2
    groups = []
    for width in widths:
        entering = [inputs, *[width] * (config.depth - 1)]
        groups.append(modules(Bottleneck(each, width, kernels, gain) for each in entering))
        inputs = width
    return cast(Sequence[Sequence[Bottleneck]], nn.ModuleList(cast(list[nn.Module], groups)))


class GroupedEncoder(nn.Module):
    """Pixels, (B, channels, H, W), to the map that codes are told from: (B, features, rows, cols).

    A maximum over 2x2 places follows each group but the last. The ReLU before the codes' scores is
    part of it.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        widths = [config.width << number for number in range(config.halvings + 1)]
        self.enter = nn.Conv2d(config.channels, config.width, 7, padding=3)
        self.groups = _groups(config, config.width, widths, ENCODING)

    def maps(self, pixels: Tensor) -> list[Tensor]:
        """Return what enters the first group, then what leaves each, the last after its ReLU."""
        found = [self.enter(pixels)]
        for number, group in enumerate(self.groups):
            features = F.max_pool2d(found[-1], 2) if number else found[-1]
            for block in group:
                features = block(features)
            found.append(features)
        found[-1] = F.relu(found[-1])
        return found

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the last map."""
        return self.maps(pixels)[-1]


class GroupedDecoder(nn.Module):
    """Codes, (B, code width, rows, columns), to (B, outputs, H, W): the encoder's mirror.

    Each group but the last is enlarged by repeating its places.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        widths = [config.width << number for number in range(config.halvings, -1, -1)]
        self.groups = _groups(config, config.code_width, widths, DECODING)
        self.leave = nn.Conv2d(config.width, config.outputs, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Decode embedded codes."""
        for number, group in enumerate(self.groups):
            if number:
                features = F.interpolate(features, scale_factor=2.0, mode="nearest")
            for block in group:
                features = block(features)
        return self.leave(F.relu(features))
