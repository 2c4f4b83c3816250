"""The Vision Transformer, on one page: stem, tokens, positions, blocks, norm, head."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.images import Size
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.encoder.attention import Axis
from vitlab.models.encoder.block import Block, drop_rates
from vitlab.models.encoder.mixed_sizes import PackedPositions, joined, parted
from vitlab.models.grid import Grid
from vitlab.models.head import Head
from vitlab.models.layers import modules, norm_of, reset_parts
from vitlab.models.model import DenseFeatures, Model
from vitlab.models.packed import Packed, before_sorting
from vitlab.models.positions.positions import Positions, check_extra, scheme_of
from vitlab.models.regrid import regrid_patches, within
from vitlab.models.stems.stem import Filter, stem_of


class VisionTransformer(Model):
    """stem -> class token -> positions -> encoder -> norm -> pool -> head (ViT paper, section 3.1).

    Released models differ: `config.pre_norm` puts a norm before the encoder, `config.norm_at` the
    last one after the pool.

    Args:
        config: every choice of the architecture
        generator: source of the initial weights; None for PyTorch's default generator
    """

    config: ViTConfig
    head_names: ClassVar[tuple[str, ...]] = ("head.classify.", "head.pre_logits.")
    undecayed: ClassVar[tuple[str, ...]] = ("token", "registers")
    watched: bool = True  # in evaluation the last block computes all tokens, for who looks at them

    def build(self) -> None:
        """Create the modules that the configuration names."""
        config = self.config
        width, registers = config.width, config.registers
        self.stem = stem_of(config)(config)
        self.token = nn.Parameter(torch.empty(1, 1, width)) if config.has_token else None
        self.registers = nn.Parameter(torch.empty(1, registers, width)) if registers else None
        self.positions = modules(scheme_of(config).of_layers(config.at_positions))
        self.dropout = nn.Dropout(config.dropout)
        self.pre_norm = norm_of(config) if config.pre_norm else nn.Identity()
        axes: tuple[Axis, ...] = ("row", "column") if config.attention == "axial" else (None,)
        self.blocks: Sequence[Block] = modules(
            Block(config, axis, rate) for rate in drop_rates(config) for axis in axes
        )
        self.norm = norm_of(config) if config.norm_at in ("tokens", "both") else nn.Identity()
        self.head = Head(config)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight, as the official code does; each part describes its own."""
        self.stem.reset_parameters(generator)
        if self.token is not None:
            nn.init.zeros_(self.token)
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02, generator=generator)
        reset_parts(generator, *self.positions, *self.blocks, self.pre_norm, self.norm, self.head)

    def scores(self, features: Tensor) -> Tensor:
        """Compute class scores: (…, features) -> (…, classes)."""
        return self.head(features)

    def features(self, images: Tensor | Packed) -> Tensor:
        """Compute the classifier's input: (B, features), or (B, queries, features)."""
        if isinstance(images, Packed):
            return self._packed_features(images)
        return self.head.features(self.encode(images, leading=self._leading))

    def features_with_inner(self, images: Tensor | Packed, layer: int) -> tuple[Tensor, Tensor]:
        """Compute the classifier's input, and `inner` of a layer, in one pass."""
        if isinstance(images, Packed):
            return self._compute_packed_inner(images, layer)
        tokens, inner = self.encode_with(images, layer, self._leading)
        return self.head.features(tokens), inner

    def inner(self, images: Tensor | Packed, layer: int) -> Tensor:
        """Compute the class token that leaves a layer, else the mean of the patches: (B, width)."""
        self.check_images(images)
        if isinstance(images, Packed):
            return self._compute_packed_inner(images, layer)[1]
        tokens = self.leaving(images, [layer], norm=False)[layer]
        return self.inner_of(tokens)

    def inner_of(self, tokens: Tensor) -> Tensor:
        """Return what `inner` takes of tokens, (B, N, D) -> (B, D), not in less than fp32."""
        config = self.config
        tokens = tokens[:, 0] if config.has_token else tokens[:, config.prefix :]
        tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        return tokens if config.has_token else tokens.mean(1)

    @property
    def _leading(self) -> int | None:
        """How many tokens of the last block the classifier needs, the first; None: all."""
        return None if self.watched and not self.training else self.head.leading

    def encode(
        self, images: Tensor | Packed, extra: Tensor | None = None, leading: int | None = None
    ) -> Tensor:
        """Compute all tokens, after the final norm where it is on tokens (equations 1 to 4).

        Args:
            images: normalized, (B, channels, H, W), of any size that the patch divides; or packed
            extra: further tokens (B, M, width), without positions, which come after the patches
            leading: how many tokens the last block computes, the first; None: all

        Returns:
            (B, prefix + patches + M, width); of packed images (1, T, width)

        Raises:
            OptionError: a tensor of another shape, or extra tokens that the model cannot place.
        """
        return self.through(*self.begin(images, extra), leading)

    def encode_with(
        self, images: Tensor, layer: int, leading: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the same, and in the same pass `inner` of a layer, (B, width)."""
        tokens, positions = self.begin(images)
        tokens = self._run_blocks(tokens, positions, 0, layer)
        inner = self.inner_of(tokens)
        tokens = self._run_blocks(tokens, positions, layer, len(self.blocks), leading)
        tokens = tokens[:, :leading] if layer == len(self.blocks) else tokens
        return self.norm(tokens), inner

    def through(
        self, tokens: Tensor, positions: Sequence[Positions], leading: int | None = None
    ) -> Tensor:
        """Return what leaves the last norm of what `begin` or `embed` returned, as `encode`."""
        return self.norm(self._run_blocks(tokens, positions, 0, len(self.blocks), leading))

    def _run_blocks(
        self,
        tokens: Tensor,
        positions: Sequence[Positions],
        first: int,
        end: int,
        leading: int | None = None,
    ) -> Tensor:
        """Return what leaves block `end` of what enters the one after block `first`."""
        last = self.blocks[-1]
        steps = [*zip(self.blocks, positions, strict=True)]
        for block, own in steps[first:end]:
            tokens = block(own.place(tokens), own, leading if block is last else None)
        return tokens

    def begin(
        self, images: Tensor | Packed, extra: Tensor | None = None
    ) -> tuple[Tensor, list[Positions]]:
        """Return the encoder's input, (B, N, D), and the positions of each block."""
        self.check_images(images)
        if isinstance(images, Packed):
            if extra is not None:
                raise OptionError("packed images take no extra tokens: pass images of one size")
            return self._begin_packed(images)
        return self.embed(self.stem(images), self.config.grid_of(images.shape[-2:]), extra)

    def embed(
        self, patches: Tensor, grid: Grid, extra: Tensor | None = None
    ) -> tuple[Tensor, list[Positions]]:
        """Return the same from patch tokens of a grid, (B, P, D), as the stem gives them."""
        positions = [each.at(grid) for each in self.positions]
        tokens = self._with_tokens(patches, positions[0], extra)
        return self.pre_norm(self.dropout(tokens)), self._of_blocks(positions)

    def _with_tokens(self, patches: Tensor, own: Positions, extra: Tensor | None = None) -> Tensor:
        """Return class token, registers, patches and extra tokens, with their positions."""
        before = [part for part in (self.token, self.registers) if part is not None]
        after = [] if extra is None else [check_extra(extra, self.config, own)]
        if before or after:
            rows = [part.expand(patches.shape[0], -1, -1) for part in before]
            patches = torch.cat([*rows, patches, *after], dim=1)
        return own.start(patches)

    def _of_blocks(self, positions: Sequence[Positions]) -> list[Positions]:
        """Return the positions of each block: its own, or those that all share."""
        return [each for each in positions for _ in range(len(self.blocks) // len(positions))]

    @property
    def last_layer(self) -> int:
        """Number of the last block, as `intermediates` counts them."""
        return len(self.blocks)

    def leaving(
        self, images: Tensor | Packed, layers: Collection[int], norm: bool
    ) -> dict[int, Tensor]:
        """Return the tokens that leave these blocks, (B, prefix + patches, width) each."""
        tokens, positions = self.begin(images)
        found, steps = {0: tokens}, [*zip(self.blocks, positions, strict=True)]
        for number, (block, own) in enumerate(steps[: max((0, *layers))], 1):
            tokens = block(own.place(tokens), own)
            if number in layers:
                found[number] = tokens.to(found[0].dtype)  # fast blocks have their own
        return {layer: self.norm(found[layer]) if norm else found[layer] for layer in layers}

    def as_map(self, values: Tensor, size: tuple[int, int]) -> DenseFeatures:
        """Return tokens (B, prefix + patches, D) as a map of patches, apart from the prefix."""
        prefix, grid = self.config.prefix, self.config.grid_of(size)
        places = values[:, prefix:].transpose(1, 2).unflatten(2, grid)
        return DenseFeatures(places, values[:, :prefix])

    def attention_maps(self, images: Tensor) -> list[Tensor]:
        """Return every layer's attention: (B, branches * heads, tokens, tokens).

        Rows sum to one. The weights are those the forward pass uses, computed once more beside it.
        An axial block has two layers, for its rows and its columns.

        Raises:
            OptionError: packed images, whose maps differ in size.
        """
        if isinstance(images, Packed):
            raise OptionError("packed images have no common attention maps: pass one at a time")
        (tokens, positions), maps = self.begin(images), []
        for block, own in zip(self.blocks, positions, strict=True):
            tokens = own.place(tokens)
            maps.append(block.attention_weights(tokens, own))
            tokens = block(tokens, own)
        return maps

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
        tensors: dict[str, Tensor] = self.state_dict()
        if patch != self.config.patch:
            kind, stem = stem_of(self.config), within("stem.", tensors)
            stem = kind.repatched(stem, self.config, patch, interpolation)
            tensors |= {f"stem.{name}": tensor for name, tensor in stem.items()}
        return self.remade(new, tensors)

    @classmethod
    def regrid(
        cls, tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig
    ) -> dict[str, Tensor]:
        """Return tensors for another grid of patches: those of the stem and of positions follow."""
        return regrid_patches(tensors, old, new)

    @property
    def layers(self) -> int:
        """Number of the last layer, for layer-wise learning rates: everything after the blocks."""
        return len(self.blocks) + 1

    def layer_of(self, name: str) -> int:
        """Return how deep a parameter or module sits, by BEiT's rule: block i is layer i + 1.

        Where each block has positions of its own, they are of its layer.
        """
        first, *rest = name.split(".")
        if first == "blocks":
            return int(rest[0]) + 1 if rest else self.layers
        if first == "positions" and len(self.positions) > 1 and rest:
            return int(rest[0]) * len(self.blocks) // len(self.positions) + 1
        return self.layers if first in ("", "norm", "head") else 0

    # Sizes mixed in one batch: each run of images of one size by itself (encoder/mixed_sizes.py)
    def _begin_packed(self, images: Packed) -> tuple[Tensor, list[Positions]]:
        """Return the encoder's input, (1, T, D), and the positions of each block."""
        positions = [
            PackedPositions(each, images.runs, self.config.prefix) for each in self.positions
        ]
        patches = positions[0].parts(self.stem.packed(images)[None], prefix=0)
        tokens = joined([self._with_tokens(*part) for part in patches])
        return self.pre_norm(self.dropout(tokens)), self._of_blocks(positions)

    def _packed_features(self, images: Packed) -> Tensor:
        """Compute the classifier's input of each image, (B, features), in their order."""
        images, order = images.by_size()
        parts = parted(self.encode(images), images.runs, self.config.prefix)
        return before_sorting(torch.cat([self.head.features(part) for part in parts]), order)

    def _compute_packed_inner(self, images: Packed, layer: int) -> tuple[Tensor, Tensor]:
        """Compute the same, and `inner` of a layer."""
        images, order = images.by_size()
        prefix = self.config.prefix
        last = self.last_layer
        found = self.leaving(images, {layer, last}, norm=False)
        tokens = parted(self.norm(found[last]), images.runs, prefix)
        features = torch.cat([self.head.features(part) for part in tokens])
        parts = parted(found[layer], images.runs, prefix)
        inner = torch.cat([self.inner_of(part) for part in parts])
        return before_sorting(features, order), before_sorting(inner, order)
