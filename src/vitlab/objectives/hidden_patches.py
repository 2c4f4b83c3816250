"""The base of tasks that predict hidden patches from the final tokens at their places."""

import math

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.encoder.from_patches import encode_patches
from vitlab.models.packed import Grid
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.pretext_task import GRAY
from vitlab.recipes.pretext import Pretext


def hidden_count(ratio: float, grid: Grid) -> int:
    """Return how many patches are hidden: the share, rounded."""
    return round(ratio * math.prod(grid))


def check_hidden(options: Pretext, config: ModelConfig) -> ViTConfig:
    """Refuse models whose patches cannot be hidden after the stem, and shares without a meaning.

    Returns:
        The configuration, of a Vision Transformer.

    Raises:
        OptionError: the message says what would work.
    """
    task, ratio = options.task, options.mask_ratio
    if not isinstance(config, ViTConfig):
        raise OptionError(
            f"task={task} hides patches; {config.name} has none: use a Vision Transformer, "
            "such as ViT-B/16"
        )
    if not config.tiled:
        raise OptionError(f"task={task} hides patches side by side: set stem=linear, stem_stride=0")
    if config.fit == "native":
        raise OptionError(f"task={task} needs images of one size: set fit=crop, not native")
    for name in ("pool_mlp", "pre_logits"):
        if getattr(config, name):
            raise OptionError(f"task={task} would leave {name} untrained: set {name}=0")
    if config.pool == "attention":
        raise OptionError(f"task={task} would leave pool=attention untrained: set pool=mean")
    patches = math.prod(config.grid)
    if patches < 2:
        raise OptionError(
            f"task={task} needs several patches, and image_size={config.image_size} is one: use "
            f"--image-size {4 * config.patch}"
        )
    count, half = hidden_count(ratio, config.grid), "set mask_ratio=0.5"
    if count == 0:
        raise OptionError(f"mask_ratio={ratio:g} hides none of the {patches} patches: {half}")
    if count == patches:
        raise OptionError(f"mask_ratio={ratio:g} leaves none of the {patches} patches: {half}")
    return config


def grid_of(images: Tensor, config: ViTConfig) -> Grid:
    """Return rows and columns of the patches of images (B, channels, H, W)."""
    return config.grid_of(images.shape[-2:])


def draw_dense(dense: nn.Linear, generator: torch.Generator | None) -> None:
    """Draw as BEiT's code: a normal of 0.02, cut at one deviation, and a bias of zero."""
    small_normal_(dense.weight, generator)
    nn.init.zeros_(dense.bias)


def small_normal_(weight: Tensor, generator: torch.Generator | None) -> None:
    """Fill with a normal of 0.02, cut at one deviation (microsoft/unilm, beit)."""
    nn.init.trunc_normal_(weight, std=0.02, a=-0.02, b=0.02, generator=generator)


def last_patches(model: VisionTransformer, patches: Tensor, grid: Grid) -> Tensor:
    """Compute the final tokens of all patches, (B, P, D), from those that enter, (B, P, D).

    Where the model's last norm is on what it pools (`norm_at=pooled`), it is applied to each token,
    so that it is trained too.
    """
    tokens = encode_patches(model, patches, grid)[:, model.config.prefix :]
    normed: Tensor = model.head.norm(tokens)
    return normed


def over_image(values: Tensor, grid: Grid, patch: int) -> Tensor:
    """Spread a value for each patch over its pixels: (B, P) -> (B, 1, H, W)."""
    square = values.unflatten(1, grid)
    return square.repeat_interleave(patch, 1).repeat_interleave(patch, 2)[:, None]


def covered(pixels: Tensor, masks: Tensor, grid: Grid) -> Tensor:
    """Return pixels in [0, 1], (B, C, H, W), with gray in place of hidden patches, (B, P) bool."""
    side = pixels.shape[-2] // grid[0]
    return torch.where(over_image(masks, grid, side), GRAY, pixels)
