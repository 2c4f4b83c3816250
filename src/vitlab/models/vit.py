"""The Vision Transformer, on one page."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.images import Size
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.encoder.block import Block, block_parts
from vitlab.models.encoder.class_attention import ClassLayers, with_idle_token
from vitlab.models.encoder.layout import DenseFeatures, Layout, joined, parted
from vitlab.models.encoder.neck import Neck
from vitlab.models.encoder.placing import Placed, checked_extra
from vitlab.models.encoder.reach import Axis
from vitlab.models.encoder.stochastic_depth import drop_rates
from vitlab.models.head import Head
from vitlab.models.layers import NORMS, modules, norm_of, params_of, reset_norm
from vitlab.models.model import Model, Part
from vitlab.models.packed import Grid, Packed, before_sorting
from vitlab.models.positions.positions import Positions, scheme_of
from vitlab.models.regrid import on_grid_of, with_patch
from vitlab.models.stems.kernels import Filter
from vitlab.models.stems.stem import stem_of

Begun = tuple[Tensor, list[tuple[Block, Placed]]]  # tokens, and blocks with their positions


class VisionTransformer(Model):
    """stem -> class token -> positions -> encoder -> norm -> pool -> head (ViT paper, section 3.1).

    Released models differ: `config.pre_norm` puts a norm before the encoder, `config.norm_at` the
    last one after the pool; CaiT's class token enters after the encoder, which SAM's neck follows.

    Args:
        config: every choice of the architecture
        generator: source of the initial weights; None for PyTorch's default generator
    """

    config: ViTConfig
    head_names: ClassVar[tuple[str, ...]] = ("head.classify.", "head.pre_logits.")
    undecayed: ClassVar[tuple[str, ...]] = ("token", "registers")
    watched: bool = True  # in evaluation the last block computes all tokens, for who looks at them

    def __init__(self, config: ViTConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, generator)

    def build(self) -> None:
        """Create the modules that the configuration names."""
        config, width, registers = self.config, self.config.width, self.config.registers
        self.stem = stem_of(config)(config)
        own_token = config.has_token and not config.class_blocks
        self.token = nn.Parameter(torch.empty(1, 1, width)) if own_token else None
        self.registers = nn.Parameter(torch.empty(1, registers, width)) if registers else None
        self.positions: Sequence[Positions] = modules(
            scheme_of(config).of_layers(config.at_positions)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.pre_norm = norm_of(config) if config.pre_norm else nn.Identity()
        axes: tuple[Axis, ...] = ("row", "column") if config.attention == "axial" else (None,)
        self.blocks: Sequence[Block] = modules(
            Block(config.of_block(number), axis, rate)
            for number, rate in enumerate(drop_rates(config))
            for axis in axes
        )
        self.class_layers = ClassLayers(config) if config.class_blocks else None
        self.norm = norm_of(config) if config.norm_at == "tokens" else nn.Identity()
        if config.last_norm_eps and isinstance(self.norm, NORMS):
            self.norm.eps = config.last_norm_eps
        self.neck = Neck(config) if config.neck else None
        self.head = Head(config)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight, as the official code does; each part describes its own."""
        self.stem.reset_parameters(generator)
        if self.token is not None:
            nn.init.zeros_(self.token)
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02, generator=generator)
        for positions in self.positions:
            positions.reset_parameters(generator)
        for block in self.blocks:
            block.reset_parameters(generator)
        for part in (self.class_layers, self.neck):
            if part is not None:
                part.reset_parameters(generator)
        for norm in (self.pre_norm, self.norm):
            reset_norm(norm)
        self.head.reset_parameters(generator)

    def scores(self, features: Tensor) -> Tensor:
        """Compute class scores: (…, features) -> (…, classes)."""
        return self.head(features)

    def features(self, images: Tensor | Packed) -> Tensor:
        """Compute the classifier's input: (B, features), or (B, queries, features)."""
        if not isinstance(images, Packed):
            leading = None if self.watched and not self.training else self.head.leading
            return self.head.features(self._encoded(images, leading=leading)[0])
        images, order = images.by_size()
        rows = torch.cat([self.head.features(part) for part in self._encoded(images)])
        return before_sorting(rows, order)

    def encode(self, images: Tensor | Packed, extra: Tensor | None = None) -> Tensor:
        """Compute all tokens, after the final norm where it is on tokens.

        Args:
            images: normalized, (B, channels, H, W), of any size that the patch divides; or packed
            extra: further tokens (B, M, width), without positions, which come after the patches

        Returns:
            (B, prefix + patches + M, width or a neck's channels); of packed images (1, T, width)

        Raises:
            OptionError: a tensor of another shape, or extra tokens that the model cannot place.
        """
        parts = self._encoded(images, extra)
        return joined(parts) if isinstance(images, Packed) else parts[0]

    def _encoded(
        self, images: Tensor | Packed, extra: Tensor | None = None, leading: int | None = None
    ) -> list[Tensor]:
        """Return all tokens, (B, N, D), or the leading; packed images' by runs of one size."""
        tokens, steps = self._begin(images, extra)
        for block, placed in [*steps[:-1], (steps[-1][0], steps[-1][1].led(leading))]:
            tokens = block(placed.place(tokens), placed.layout)
        return self._finished(tokens, placed.layout)

    def _finished(self, tokens: Tensor, layout: Layout) -> list[Tensor]:
        """Return what `finish` makes of (B, N, D), or of each run of packed images."""
        if not layout.runs:
            return [self.finish(tokens, layout.grid)]
        parts = zip(parted(tokens, layout.runs), layout.runs, strict=True)
        return [self.finish(part, run.layout.grid) for part, run in parts]

    def finish(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return what leaves the blocks, (B, N, D), after class-attention layers, norm and neck."""
        if self.class_layers is not None:
            tokens = self.class_layers(tokens)
        tokens = self.norm(tokens)
        return tokens if self.neck is None else self.neck(tokens, grid)

    @property
    def last_layer(self) -> int:
        """Number of the last block, as `intermediates` counts them."""
        return len(self.blocks)

    def leaving(
        self, images: Tensor | Packed, layers: Collection[int], norm: bool
    ) -> dict[int, Tensor]:
        """Return the tokens that leave these blocks, (B, prefix + patches, width) each."""
        if self.class_layers is not None and isinstance(images, Packed) and not norm:
            raise OptionError("class_blocks keep packed images apart: pass one at a time")
        tokens, steps = self._begin(images)
        layout, found = steps[0][1].layout, {0: tokens}
        for number, (block, placed) in enumerate(steps[: max((0, *layers))], 1):
            tokens = block(placed.place(tokens), placed.layout)
            if number in layers:
                found[number] = tokens.to(found[0].dtype)  # fast blocks have their own
        return {layer: self._left(found[layer], layout, norm) for layer in layers}

    def _left(self, tokens: Tensor, layout: Layout, norm: bool) -> Tensor:
        """Return what `intermediates` says of tokens that leave a block, (B, N, D)."""
        if norm:
            parts = self._finished(tokens, layout)
            return joined(parts) if layout.runs else parts[0]
        return tokens if self.class_layers is None else self.class_layers.before(tokens)

    def as_map(self, values: Tensor, size: tuple[int, int]) -> DenseFeatures:
        """Return tokens (B, prefix + patches, D) as a map of patches, apart from the prefix."""
        return DenseFeatures.of(values, self.config.prefix, self.config.grid_of(size))

    def attention_maps(self, images: Tensor) -> list[Tensor]:
        """Return every layer's attention: (B, branches * heads, tokens, tokens).

        Rows sum to one, but for windows with padding, which takes a share. The weights are those
        the forward pass uses, computed once more beside it. An axial block has two layers, for its
        rows and its columns. Class-attention layers come last; tokens that do not take part in a
        layer attend to themselves.

        Raises:
            OptionError: packed images, whose maps differ in size.
        """
        if isinstance(images, Packed):
            raise OptionError("packed images have no common attention maps: pass one at a time")
        (tokens, steps), maps = self._begin(images), []
        for block, placed in steps:
            tokens = placed.place(tokens)
            maps.append(block.attention_weights(tokens, placed.layout))
            tokens = block(tokens, placed.layout)
        if self.class_layers is not None:
            return [*map(with_idle_token, maps), *self.class_layers.attention_maps(tokens)]
        return maps

    def _begin(self, images: Tensor | Packed, extra: Tensor | None = None) -> Begun:
        """Return the encoder's input, and each block with the positions of its tokens."""
        self.check_images(images)
        if not isinstance(images, Packed):
            return self.begin(self.stem(images), self.config.grid_of(images.shape[-2:]), extra)
        if extra is not None:
            raise OptionError("packed images take no extra tokens: pass images of one size")
        runs = images.runs
        placed = [Placed.packed(each, runs, self.config.leading) for each in self.positions]
        patches = self.stem.packed(images).split([math.prod(grid) * n for grid, n in runs])
        each = zip(patches, runs, placed[0].schemes, strict=True)
        tokens = joined([self._embed(p.unflatten(0, (n, -1)), own) for p, (_, n), own in each])
        return self._entering(tokens, placed)

    def begin(self, patches: Tensor, grid: Grid, extra: Tensor | None = None) -> Begun:
        """Return the same from patch tokens of a grid, (B, P, D), as the stem gives them."""
        placed = [Placed.of(each, grid) for each in self.positions]
        return self._entering(self._embed(patches, placed[0].schemes[0], extra), placed)

    def _entering(self, tokens: Tensor, placed: list[Placed]) -> Begun:
        steps = [(b, placed[n]) for b, n in zip(self.blocks, self._tables(), strict=True)]
        return self.pre_norm(self.dropout(tokens)), steps

    def _embed(self, tokens: Tensor, positions: Positions, extra: Tensor | None = None) -> Tensor:
        """Return class token, registers, patches and extra tokens, with their positions."""
        before = [part for part in (self.token, self.registers) if part is not None]
        after = [] if extra is None else [checked_extra(extra, self.config, positions)]
        if before or after:
            rows = [part.expand(tokens.shape[0], -1, -1) for part in before]
            tokens = torch.cat([*rows, tokens, *after], dim=1)
        return positions.start(tokens)

    def _tables(self) -> list[int]:
        """Return the number of the positions of each block: its own, or those that all share."""
        each = len(self.blocks) // len(self.positions)
        return [number // each for number in range(len(self.blocks))]

    def parts(self) -> Sequence[Part]:
        """Count stem (with class token, registers and positions), attention, MLP, norms and head.

        Multiply-adds are those of matrix products and convolutions, and one per element for each
        of the encoder's norms.
        """
        config, head, macs = self.config, params_of(self.head), self.head.macs()
        if self.neck is not None:
            head, macs = head + params_of(self.neck), macs + self.neck.macs(math.prod(config.grid))
        stem = params_of(self.stem, *self.positions) + config.prefix * config.width
        schemes = [positions.at(config.grid) for positions in self.positions]
        within = config.branches * sum(schemes[table].macs() for table in self._tables())
        outer = (self.pre_norm, self.norm, self.head.norm)
        counted = [
            Part("stem", stem, self.stem.macs()),
            *block_parts(self.blocks, outer, config.length, within),
            Part("head", head - params_of(self.head.norm), macs),
        ]
        if self.class_layers is not None:
            counted.insert(-1, self.class_layers.part(math.prod(config.grid)))
        return tuple(counted)

    @classmethod
    def resized(
        cls, tensors: dict[str, Tensor], old: ModelConfig, new: ModelConfig
    ) -> dict[str, Tensor]:
        """Return the tensors of a model for another image size, which stem and positions follow.

        Raises:
            OptionError: positions that are limited to one image size.
        """
        assert isinstance(old, ViTConfig)
        assert isinstance(new, ViTConfig)
        return on_grid_of(new, tensors, old)

    def repatch(
        self, patch: int, image_size: Size | None = None, interpolation: Filter = "bilinear"
    ) -> Self:
        """Return the same model for another patch size (FlexiViT; Beyer et al., 2023).

        The kernel of a linear stem is resampled by the pseudo-inverse, and positions follow the new
        grid. All else shares its memory with this model, as with `resize`.

        Args:
            patch: pixels per side
            image_size: pixels, one number for a square or (rows, columns); None for the same
            interpolation: how patches are resized: bilinear as in the paper, or bicubic as in timm

        Raises:
            OptionError: a size that the patch does not divide, another stem, or fixed positions.
            WeightsError: a fused model.
        """
        size = self.config.image_size if image_size is None else image_size
        new = replace(self.config.settled, patch=patch, image_size=size)
        tensors = self.state_dict()
        return self.remade(new, with_patch(patch, tensors, self.config, interpolation))

    @property
    def layers(self) -> int:
        """Number of the last layer, for layer-wise learning rates: everything after the blocks."""
        return len(self.blocks) + 1

    def layer_of(self, name: str) -> int:
        """Return how deep a parameter or module sits, by BEiT's rule: block i is layer i + 1."""
        first, *rest = name.split(".")
        if first == "blocks":
            return int(rest[0]) + 1 if rest else self.layers
        return self.layers if first in ("", "class_layers", "norm", "neck", "head") else 0
