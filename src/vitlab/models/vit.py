"""The Vision Transformer, on one page."""

from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from vitlab.errors import UserError
from vitlab.models.attention import Axis
from vitlab.models.block import Block, drop_rates
from vitlab.models.config import ViTConfig
from vitlab.models.head import Head
from vitlab.models.position import Additive, GridPositions, Inner, LearnedPositions, build_positions
from vitlab.models.stem import build_stem


class VisionTransformer(nn.Module):
    """stem -> class token -> positions -> encoder -> norm -> pool -> head (ViT paper, section 3.1).

    Models that others released differ in where a norm is: `config.pre_norm` puts one before the
    encoder, `config.norm_at` the last one behind the pool.

    Args:
        config: every choice of the architecture
        generator: where the initial weights are drawn from; None for PyTorch's default generator
    """

    def __init__(self, config: ViTConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.provenance: dict[str, Any] = {}  # of the weights: data, recipe, …; saved with them
        self.source = ""  # where they were loaded from
        device = torch.get_default_device()
        with torch.device("meta"):  # shapes first: no tensor is filled twice
            self._build()
        if device.type != "meta":
            self.to_empty(device=device)
            self.reset_parameters(generator)

    def _build(self) -> None:
        config, width = self.config, self.config.width
        self.stem = build_stem(config)
        registers = config.registers
        self.token = nn.Parameter(torch.empty(1, 1, width)) if config.has_token else None
        self.registers = nn.Parameter(torch.empty(1, registers, width)) if registers else None
        self.positions = nn.ModuleList(build_positions(config))
        self.dropout = nn.Dropout(config.dropout)
        self.pre_norm = nn.LayerNorm(width, config.norm_eps) if config.pre_norm else nn.Identity()
        axes: tuple[Axis, ...] = ("row", "column") if config.attention == "axial" else (None,)
        self.blocks = nn.ModuleList(
            Block(config, axis, rate) for rate in drop_rates(config) for axis in axes
        )
        self.norm = (
            nn.LayerNorm(width, config.norm_eps) if config.norm_at == "tokens" else nn.Identity()
        )
        self.head = Head(config)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight anew, as the official code does (each part says how)."""
        self.stem.reset_parameters(generator)
        if self.token is not None:
            nn.init.zeros_(self.token)
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02, generator=generator)
        for positions in self.positions:
            cast(LearnedPositions, positions).reset_parameters(generator)
        for block in self.blocks:
            cast(Block, block).reset_parameters(generator)
        for norm in (self.pre_norm, self.norm):
            if isinstance(norm, nn.LayerNorm):
                norm.reset_parameters()
        self.head.reset_parameters(generator)

    def widen(self, on: bool = True) -> Self:
        """Compute parallel branches as one wide computation, or again one by one.

        The numbers are the same, gradients included; the wide form builds its weights at every
        pass, so it is for training with large batches, and `vitlab.fuse` for inference. Blocks
        with dropout or stochastic depth keep their branches apart in training.
        """
        for block in self.blocks:
            cast(Block, block).wide = on
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Normalized images (B, channels, H, W) to class scores (B, classes)."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the classifier sees: (B, features), or (B, queries, features)."""
        return self.head.features(self.encode(images))

    def encode(self, images: Tensor, extra: Tensor | None = None) -> Tensor:
        """All tokens after the final norm, where it is on tokens: (B, prefix + patches, width).

        Args:
            images: normalized, (B, channels, H, W)
            extra: a further sequence of tokens (B, M, width), which joins the patches in every
                block, without positions, and comes out behind them
        """
        tokens = self._embed(images, extra)
        for number, block in enumerate(self.blocks):
            tokens = block(self._place(tokens, number), self._inner(number))
        return self.norm(tokens)

    def attention_maps(self, images: Tensor) -> list[Tensor]:
        """What every token attends to, a layer each: (B, branches * heads, tokens, tokens).

        Rows sum to one. The weights are those the forward pass uses, computed once more beside it.
        An axial block has two layers, for its rows and its columns.
        """
        tokens, maps = self._embed(images), []
        for number, block in enumerate(self.blocks):
            tokens, inner = self._place(tokens, number), self._inner(number)
            maps.append(cast(Block, block).attention_weights(tokens, inner))
            tokens = block(tokens, inner)
        return maps

    def _embed(self, images: Tensor, extra: Tensor | None = None) -> Tensor:
        """Patch tokens behind class token and registers, with positions, before the encoder."""
        want = (self.config.channels, *self.config.size)
        if images.ndim != 4 or images.shape[1:] != want:
            shape = ", ".join(map(str, want))
            raise UserError(f"images must be (B, {shape}), not {tuple(images.shape)}")
        tokens = self.stem(images)
        before = [part for part in (self.token, self.registers) if part is not None]
        behind = [] if extra is None else [self._checked(extra)]
        parts = [part.expand(len(tokens), -1, -1) for part in before]
        if parts or behind:
            tokens = torch.cat([*parts, tokens, *behind], dim=1)
        if self.config.positions_at == "stem" and self.config.positions in ("1d", "2d"):
            tokens = cast(Additive, self.positions[0])(tokens)
        return self.pre_norm(self.dropout(tokens))

    def _checked(self, extra: Tensor) -> Tensor:
        if self.config.attention == "axial" or self.config.positions in ("relative", "bias"):
            which = "axial attention" if self.config.attention == "axial" else "relative positions"
            raise UserError(f"extra tokens have no place among {which}")
        if extra.ndim != 3 or extra.shape[-1] != self.config.width:
            raise UserError(f"extra must be (B, M, {self.config.width}), not {tuple(extra.shape)}")
        return extra

    def _of_block(self, number: int) -> nn.Module:
        """The positions of a block: its own, or the one that all share."""
        blocks = len(self.blocks) // self.config.depth  # two share an axial block's place
        return self.positions[number // blocks if len(self.positions) > 1 else 0]

    def _place(self, tokens: Tensor, number: int) -> Tensor:
        """Tokens as a block sees them, with positions where every block adds them."""
        if self.config.positions_at == "stem" or self.config.positions not in ("1d", "2d"):
            return tokens
        return cast(GridPositions, self._of_block(number))(tokens)

    def _inner(self, number: int) -> Inner | None:
        """What acts within a block's attention: relative, biasing or rotary positions."""
        if self.config.positions not in ("relative", "bias", "rope"):
            return None
        return cast(Inner, self._of_block(number))
