"""The Vision Transformer, on one page."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from vitlab.errors import UserError
from vitlab.models.block import Block
from vitlab.models.config import Size, ViTConfig
from vitlab.models.head import Head
from vitlab.models.names import config_of
from vitlab.models.position import LearnedPositions
from vitlab.models.stem import LinearStem


class VisionTransformer(nn.Module):
    """stem -> class token -> positions -> encoder -> norm -> pool -> head (ViT paper, section 3.1).

    Args:
        config: every choice of the architecture
        generator: where the initial weights are drawn from; None for PyTorch's default generator
    """

    def __init__(self, config: ViTConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.provenance: dict[str, Any] = {}  # of the weights: data, recipe, …; saved with them
        device = torch.get_default_device()
        with torch.device("meta"):  # shapes first: no tensor is filled twice
            self._build()
        if device.type != "meta":
            self.to_empty(device=device)
            self.reset_parameters(generator)

    def _build(self) -> None:
        config = self.config
        self.stem = LinearStem(config)
        self.token = nn.Parameter(torch.empty(1, 1, config.width)) if config.prefix else None
        self.positions = LearnedPositions(config) if config.positions == "1d" else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.head = Head(config)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight anew, as the official code does (each part says how)."""
        self.stem.reset_parameters(generator)
        if self.token is not None:
            nn.init.zeros_(self.token)
        if isinstance(self.positions, LearnedPositions):
            self.positions.reset_parameters(generator)
        for block in self.blocks:
            cast(Block, block).reset_parameters(generator)
        self.norm.reset_parameters()
        self.head.reset_parameters(generator)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, channels, H, W) to class scores (B, classes)."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the classifier sees: (B, features)."""
        return self.head.features(self.encode(images))

    def encode(self, images: Tensor) -> Tensor:
        """All tokens after the final norm: (B, prefix + patches, width)."""
        tokens = self._embed(images)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)

    def attention_maps(self, images: Tensor) -> list[Tensor]:
        """What every token attends to, a layer each: (B, branches * heads, tokens, tokens).

        Rows sum to one. The weights are those the forward pass uses, computed once more beside it.
        """
        tokens, maps = self._embed(images), []
        for block in self.blocks:
            maps.append(cast(Block, block).attention_weights(tokens))
            tokens = block(tokens)
        return maps

    def _embed(self, images: Tensor) -> Tensor:
        """Patch tokens behind the class token, with positions: (B, prefix + patches, width)."""
        want = (self.config.channels, *self.config.size)
        if images.ndim != 4 or images.shape[1:] != want:
            raise UserError(
                f"images must be (B, {', '.join(map(str, want))}), not {tuple(images.shape)}"
            )
        tokens = self.stem(images)
        if self.token is not None:
            tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], dim=1)
        return self.dropout(self.positions(tokens))


def create(
    name: str,
    classes: int = 1000,
    image_size: Size = 224,
    *,
    generator: torch.Generator | None = None,
    **choices: Any,
) -> VisionTransformer:
    """A freshly initialised model by its name in the papers, `ViT-B/16`.

    Args:
        name: the papers' notation; `vitlab models` lists the usual ones
        classes: outputs of the classifier
        image_size: pixels, one number for a square or (rows, columns)
        generator: where the weights are drawn from; None for PyTorch's default generator
        choices: any other field of `ViTConfig`

    Raises:
        ValueError: a name, field or value that cannot be; the message says what would work.
    """
    try:
        config = config_of(name, classes=classes, image_size=image_size, **choices)
    except TypeError as error:  # a keyword that is no field
        raise UserError(_unknown_field(choices)) from error
    return VisionTransformer(config, generator)


def _unknown_field(choices: dict[str, Any]) -> str:
    known = ViTConfig.__dataclass_fields__
    wrong = next((key for key in choices if key not in known), "?")
    return f"unknown model field {wrong!r}; there are {', '.join(known)}"
