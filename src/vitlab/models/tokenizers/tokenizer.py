"""An image tokenizer: images to a grid of discrete codes, and codes back to images."""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.models.config import ModelConfig, TokenizerConfig
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.models.tokenizers.networks import (
    GroupedDecoder,
    GroupedEncoder,
    StridedDecoder,
    StridedEncoder,
)

SHARP = 20.0  # how much larger than PyTorch's the kernel starts that scores the codes of a dVAE
MARGIN = 0.1  # DALL-E's epsilon: pixels in [0, 1] are moved into [0.1, 0.9]


def squeezed(pixels: Tensor) -> Tensor:
    """Move pixels from [0, 1] into [0.1, 0.9], where a logit is finite (openai/DALL-E, utils)."""
    return (1 - 2 * MARGIN) * pixels + MARGIN


class Normalization(nn.Module):
    """Between normalized images and pixels in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.values = config.mean, config.std
        for name in ("mean", "std"):
            self.register_buffer(name, torch.empty(config.channels, 1, 1), persistent=False)

    def refresh(self) -> None:
        """Fill the buffers."""
        for buffer, values in zip((self.mean, self.std), self.values, strict=True):
            buffer.copy_(buffer.new_tensor(values)[:, None, None])

    def pixels(self, images: Tensor) -> Tensor:
        """Return the pixels in [0, 1] of normalized images, (B, channels, H, W)."""
        return images * self.std + self.mean

    def normalized(self, pixels: Tensor) -> Tensor:
        """Return normalized images of pixels in [0, 1], (B, channels, H, W)."""
        return (pixels - self.mean) / self.std


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
        self.normalization = Normalization(config)
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
        self.normalization.refresh()
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
        return self.normalization.normalized(((centers - MARGIN) / (1 - 2 * MARGIN)).clamp(0, 1))

    def pixels(self, images: Tensor) -> Tensor:
        """Return the pixels of normalized images, in [0, 1] where these are images."""
        return self.normalization.pixels(images)

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
