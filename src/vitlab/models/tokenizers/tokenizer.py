"""Image tokenizers, discrete VAEs: images to a grid of discrete codes, and codes back to images.

Encoders and decoders are of strided convolutions (dVAE), or of groups (DALL-E). The strided ones
have the layers and the order of lucidrains/DALLE-pytorch (`DiscreteVAE`), and start as PyTorch
starts them, as they do there. The others are those of openai/DALL-E (encoder.py, decoder.py,
utils.py): groups of residual bottlenecks, pooled or enlarged between groups; kernels start normal
with a variance of 1 / fan-in, biases at zero.
"""

import math
from collections.abc import Collection, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.layers import modules
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.on_device import sent

SHARP = 20.0  # how much larger than PyTorch's the kernel starts that scores the codes of a dVAE
MARGIN = 0.1  # DALL-E's epsilon: pixels in [0, 1] are moved into [0.1, 0.9]
ENCODING, DECODING = (3, 3, 3, 1), (1, 3, 3, 3)  # kernels of a bottleneck


def squeezed(pixels: Tensor) -> Tensor:
    """Move pixels from [0, 1] into [0.1, 0.9], where a logit is finite (openai/DALL-E, utils)."""
    return (1 - 2 * MARGIN) * pixels + MARGIN


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


class Codebook(nn.Module):
    """A vector per code; a mixture of codes has the mixture of their vectors."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.codes, config.code_width))
        dalle = config.form == "dalle"  # whose codebook is a convolution with a bias
        self.bias = nn.Parameter(torch.empty(config.code_width)) if dalle else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw normal vectors: of variance 1, or as DALL-E's convolution 1 / (number of codes)."""
        std = 1.0 if self.bias is None else 1 / math.sqrt(len(self.weight))
        nn.init.normal_(self.weight, 0, std, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, codes: Tensor) -> Tensor:
        """Embed codes, int64 (B, rows, columns), or shares of all, (B, codes, rows, columns)."""
        if codes.ndim == 3:
            vectors = F.embedding(codes, self.weight)
        else:
            vectors = codes.movedim(1, -1) @ self.weight
        if self.bias is not None:
            vectors = vectors + self.bias
        return vectors.movedim(-1, 1)


def _reset(
    layer: nn.Conv2d | nn.ConvTranspose2d, dalle: bool, generator: torch.Generator | None
) -> None:
    """Start a convolution as OpenAI's code does, or as PyTorch: within 1 / sqrt(fan-in)."""
    limit = 1 / math.sqrt(layer.weight[0].numel())
    if dalle:
        nn.init.normal_(layer.weight, 0, limit, generator=generator)
    else:
        nn.init.uniform_(layer.weight, -limit, limit, generator=generator)
    if layer.bias is not None and dalle:
        nn.init.zeros_(layer.bias)
    elif layer.bias is not None:
        nn.init.uniform_(layer.bias, -limit, limit, generator=generator)


class Tokenizer(Model):
    """A discrete VAE (Ramesh et al., Zero-Shot Text-to-Image Generation, 2021, section 2.1).

    encoder -> scores of the codes at each place -> codes -> codebook -> decoder.

    Args:
        config: every choice of the architecture
        generator: source of the initial weights; None for PyTorch's default generator
    """

    config: TokenizerConfig
    head_names = ()

    def build(self) -> None:
        """Create the modules that the configuration names."""
        config = self.config
        dalle = config.form == "dalle"
        self.encoder = GroupedEncoder(config) if dalle else StridedEncoder(config)
        self.score = nn.Conv2d(config.features, config.codes, 1)
        self.codebook: Codebook | None = None
        self.decoder: GroupedDecoder | StridedDecoder | None = None
        if config.decoder:
            self.codebook = Codebook(config)
            self.decoder = GroupedDecoder(config) if dalle else StridedDecoder(config)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight, as the official code does; but for the scores of the form `dvae`.

        These start `SHARP` times as large: scores near zero make every code as likely as any other,
        so that the decoder learns to ignore them, and most codes are never used.
        """
        dalle = self.config.form == "dalle"
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                _reset(module, dalle, generator)
            elif isinstance(module, Codebook):
                module.reset_parameters(generator)
        if not dalle:
            with torch.no_grad():
                self.score.weight.mul_(SHARP)

    def logits(self, images: Tensor) -> Tensor:
        """Compute the score of every code at each place.

        Args:
            images: normalized, (B, channels, H, W), of any size that the stride divides

        Returns:
            (B, codes, rows, columns)

        Raises:
            OptionError: images of another shape.
        """
        return self.score(self.encoder(self._entering(images)))

    def codes(self, images: Tensor) -> Tensor:
        """Return the likeliest code at each place.

        Args:
            images: normalized, (B, channels, H, W), of any size that the stride divides

        Returns:
            int64 (B, rows, columns)

        Raises:
            OptionError: images of another shape.
        """
        return self.logits(images).argmax(1)

    def outputs(self, codes: Tensor) -> Tensor:
        """Decode codes, or mixtures of them, without turning the result into images.

        Args:
            codes: int64 (B, rows, columns), or shares of all codes (B, codes, rows, columns)

        Returns:
            (B, channels, H, W), normalized images; with `laplace` (B, 2 * channels, H, W), the
            centers of the logits of squeezed pixels, then the logarithms of their scales

        Raises:
            OptionError: a tokenizer without a decoder.
        """
        if self.codebook is None or self.decoder is None:
            raise OptionError(
                f"{self.config.name} has no decoder: load one that was saved with its decoder "
                "(DALL-E's is a file of its own, decoder.pkl)"
            )
        return self.decoder(self.codebook(codes))

    def decode(self, codes: Tensor) -> Tensor:
        """Return the images that codes, or mixtures of them, stand for.

        Args:
            codes: int64 (B, rows, columns), or shares of all codes (B, codes, rows, columns)

        Returns:
            (B, channels, H, W), normalized as the inputs are

        Raises:
            OptionError: a tokenizer without a decoder.
        """
        return self.as_images(self.outputs(codes))

    def as_images(self, outputs: Tensor) -> Tensor:
        """Turn what `outputs` returns into normalized images: with `laplace`, their centers."""
        if not self.config.laplace:
            return outputs
        centers = outputs[:, : self.config.channels].sigmoid()
        return self.normalized(((centers - MARGIN) / (1 - 2 * MARGIN)).clamp(0, 1))

    def pixels(self, images: Tensor) -> Tensor:
        """Return the pixels of normalized images, in [0, 1] where these are images."""
        mean, std = self._moments()
        return images * std + mean

    def normalized(self, pixels: Tensor) -> Tensor:
        """Return normalized images of pixels in [0, 1], (B, channels, H, W)."""
        mean, std = self._moments()
        return (pixels - mean) / std

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of each channel, (channels, 1, 1), as the weights are kept."""
        values = torch.tensor([self.config.mean, self.config.std])
        mean, std = sent(values, self.score.weight.device).to(self.score.weight.dtype)
        return mean[:, None, None], std[:, None, None]

    def scores(self, features: Tensor) -> Tensor:
        """Return the features, for there is no classifier."""
        return features

    @property
    def last_layer(self) -> int:
        """Number of the last map, as `intermediates` counts them."""
        dalle = self.config.form == "dalle"
        return self.config.halvings + (1 if dalle else 0)

    def leaving(
        self, images: Tensor | Packed, layers: Collection[int], norm: bool
    ) -> dict[int, Tensor]:
        """Return these maps of the encoder, (B, width, rows, columns) each."""
        assert not isinstance(images, Packed)
        maps = self.encoder.maps(self._entering(images))
        return {layer: maps[layer] for layer in layers}

    def _entering(self, images: Tensor | Packed) -> Tensor:
        """What the first layer sees: DALL-E's takes pixels, squeezed, instead of images."""
        self.check_images(images)
        assert not isinstance(images, Packed)
        return squeezed(self.pixels(images)) if self.config.form == "dalle" else images
