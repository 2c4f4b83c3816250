"""The surface of timm's models (timm 1.0) around one of ours."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.images import Size
from vitlab.models.config import ModelConfig
from vitlab.models.create import assemble, with_new_head
from vitlab.models.encoder.recomputing import recomputed
from vitlab.models.model import Model
from vitlab.weights.assembly import empty

POOLS = {"token": "token", "mean": "avg", "attention": "map"}  # ours -> timm's


@dataclass(frozen=True)
class PatchEmbed:
    """What code for timm asks of `model.patch_embed`: the sizes, each rows and columns.

    Attributes:
        img_size: of the input, in pixels
        patch_size: of a patch, in pixels; a ResNet's stride
        grid_size: of the grid of patches
    """

    img_size: tuple[int, int]
    patch_size: tuple[int, int]
    grid_size: tuple[int, int]

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return self.grid_size[0] * self.grid_size[1]

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """Return the grid of an image of another size."""
        return img_size[0] // self.patch_size[0], img_size[1] // self.patch_size[1]


def chosen_blocks(indices: int | Sequence[int] | None, count: int) -> list[int]:
    """Return numbers of blocks, from 0, in timm's reading of `indices`.

    Raises:
        OptionError: a block that there is not.
    """
    if indices is None:
        return list(range(count))
    wanted = [count - indices + n for n in range(indices)] if isinstance(indices, int) else indices
    for number in wanted:
        if not -count <= number < count:
            raise OptionError(f"block {number} of {count}: choose from 0 to {count - 1}")
    return [number % count for number in wanted]


class TimmModel(nn.Module):
    """One of our models with the methods and attributes of timm's.

    Names of parameters begin with `model.`. Code for timm that looks for modules by name finds
    `blocks` alone.

    Attributes:
        model: ours; another one, around the same weights, after `reset_classifier` or
            `set_input_size`
        global_pool: how tokens are pooled, in timm's words: `token`, `avg`, `map`, or `""` for not
            at all
        grad_checkpointing: whether a training step keeps only what enters each block
    """

    model: Model

    def __init__(self, model: Model, global_pool: str) -> None:
        super().__init__()
        self.model, self.global_pool, self.grad_checkpointing = model, global_pool, False

    # What the body decides

    @property
    def num_features(self) -> int:
        """Channels of what `forward_features` returns."""
        raise NotImplementedError

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The encoder's blocks, or the stages of a ResNet."""
        raise NotImplementedError

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Module, channels (`num_chs`) and stride (`reduction`) of each block or stage."""
        raise NotImplementedError

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before those of the patches: class and distillation token, registers."""
        return 0

    def forward_features(self, x: Tensor) -> Tensor:
        """Compute what the head takes, after the final norm: tokens (B, N, D) or a map."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute class scores from what `forward_features` returns.

        Args:
            x: tokens or a map
            pre_logits: return what the classifier sees instead
        """
        raise NotImplementedError

    def run(
        self, x: Tensor, numbers: list[int], norm: bool, whole: bool
    ) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
        """Compute maps (B, D, h, w) and prefix tokens that leave blocks, and `forward_features`.

        Args:
            x: normalized images
            numbers: of the blocks, from 0
            norm: apply the final norm to each
            whole: whether what `forward_features` returns is wanted, too
        """
        raise NotImplementedError

    def configured(self, pool: str | None, **fields: Any) -> ModelConfig:
        """Return the model's configuration with other fields, and pooled by timm's word.

        Raises:
            OptionError: a way to pool that the model does not have.
        """
        raise NotImplementedError

    # What all share

    @property
    def num_classes(self) -> int:
        """Outputs of the classifier; 0 for none."""
        return self.model.config.classes

    @property
    def embed_dim(self) -> int:
        """The same as `num_features`."""
        return self.num_features

    @property
    def head_hidden_size(self) -> int:
        """Features that the classifier sees."""
        return self.model.config.features

    @property
    def patch_embed(self) -> PatchEmbed:
        """The sizes of images, patches and their grid."""
        config = self.model.config
        (rows, columns), (high, wide) = config.size, config.grid
        return PatchEmbed((rows, columns), (rows // high, columns // wide), (high, wide))

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """How images are prepared, as `timm.data.resolve_model_data_config` reads it."""
        config = self.model.config
        return {
            "input_size": (config.channels, *config.size),
            "interpolation": config.interpolation,
            "mean": config.mean,
            "std": config.std,
            "crop_pct": config.crop,
            "crop_mode": "squash" if config.fit == "squash" else "center",
            "num_classes": config.classes,
            "classifier": f"model.{self.model.head_names[0].removesuffix('.')}",
            **({"label_names": config.labels} if config.labels else {}),
        }

    @property
    def default_cfg(self) -> dict[str, Any]:
        """The same as `pretrained_cfg`."""
        return self.pretrained_cfg

    def forward(self, x: Tensor) -> Tensor:
        """Compute class scores: (B, channels, H, W) -> (B, classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,  # accepted; blocks that nothing needs are never computed
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
    ) -> Any:
        """Compute what leaves chosen blocks, and what `forward_features` returns.

        Args:
            x: normalized images, (B, channels, H, W)
            indices: the last so many blocks, their numbers from 0 (negative: from the end), or
                None for all
            return_prefix_tokens: pairs of patches and prefix tokens
            norm: apply the final norm to each
            stop_early: has no effect
            output_fmt: `NCHW` for maps (B, D, h, w), `NLC` for tokens (B, N, D)
            intermediates_only: leave out what `forward_features` returns
            output_dict: return a dictionary with timm's keys

        Raises:
            OptionError: another format, or a block that the model does not have.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise OptionError(f"output_fmt must be NCHW or NLC, not {output_fmt}")
        numbers = chosen_blocks(indices, len(self.blocks))
        found, prefixes, final = self.run(x, numbers, norm, not intermediates_only)
        if output_fmt == "NLC":
            found = [each.flatten(2).transpose(1, 2) for each in found]
        paired = return_prefix_tokens and self.num_prefix_tokens
        if output_dict:
            result: dict[str, Any] = {"image_intermediates": found}
            result |= {"image_intermediates_prefix": prefixes} if paired else {}
            return result if intermediates_only else result | {"image_features": final}
        listed: list[Any] = [*zip(found, prefixes, strict=True)] if paired else found
        return listed if intermediates_only else (final, listed)

    def get_intermediate_layers(
        self,
        x: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
    ) -> Any:
        """Compute what leaves chosen blocks: `forward_intermediates` by DINO's name."""
        return self.forward_intermediates(
            x,
            n,
            return_prefix_tokens,
            norm,
            output_fmt="NCHW" if reshape else "NLC",
            intermediates_only=True,
        )

    def get_classifier(self) -> nn.Module:
        """Return the classifier, a linear layer; the identity if there is none."""
        return self.get_submodule(self.pretrained_cfg["classifier"])

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Put a new classifier of zeros in place of the old one (ViT paper, section 3.2).

        Args:
            num_classes: its outputs; 0 for none
            global_pool: how to pool from now on; None as before

        Raises:
            OptionError: a way to pool that the model does not have.
        """
        config = self.configured(global_pool, classes=num_classes, labels=(), zero_head=True)
        training, device = self.training, next(self.model.parameters()).device
        whole = with_new_head(self.model.state_dict(keep_vars=True), config)
        tensors = {name: whole[name].to(device) for name in empty(config)}
        old, self.model = self.model, assemble(config, tensors)
        self.model.provenance, self.model.seen = dict(old.provenance), old.seen
        self.global_pool = self.global_pool if global_pool is None else global_pool
        self.train(training)

    def set_input_size(self, img_size: Size | None = None, patch_size: Size | None = None) -> None:
        """Change the size of images and patches; positions follow.

        Args:
            img_size: pixels, one number for a square or (rows, columns); None as before
            patch_size: pixels of a square patch; None as before

        Raises:
            OptionError: a size that the patch does not divide, or a model limited to one size.
        """
        size = self.model.config.image_size if img_size is None else img_size
        self.model = self._resized(size, patch_size)

    def _resized(self, size: Size, patch: Size | None) -> Model:
        own = self.patch_embed.patch_size
        if patch not in (None, own, own[0]):
            raise OptionError(f"{self.model.config.name} has no patches to resize: leave it out")
        return self.model.resize(size)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only what enters each block in a training step, or everything."""
        self.grad_checkpointing = enable

    def recomputing(self) -> AbstractContextManager[None]:
        """Return the context of a forward pass that keeps what `grad_checkpointing` asks for."""
        on = self.grad_checkpointing and self.training and torch.is_grad_enabled()
        return recomputed(self.model, on) if self.model.config.blocks else nullcontext()

    def no_weight_decay(self) -> set[str]:
        """Return the names of kernels that are not decayed: tokens and tables of positions."""
        return {
            f"{place}.{name}"
            for place, module in self.named_modules()
            for name, _ in module.named_parameters(recurse=False)
            if name in getattr(module, "undecayed", ())
        }

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns of names by depth, as timm's layer-wise learning rates use them."""
        raise NotImplementedError
