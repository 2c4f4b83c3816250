"""The base of tasks that predict hidden patches from the final tokens at their places."""

import math

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.encoder.from_patches import gathered
from vitlab.models.grid import Grid
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.pretext_task import GRAY, PretextTask
from vitlab.recipes.pretext import Pretext


def hidden_count(ratio: float, grid: Grid) -> int:
    """Return how many patches are hidden: the share, rounded."""
    return round(ratio * math.prod(grid))


def check_patches(options: Pretext, config: ModelConfig) -> ViTConfig:
    """Refuse models without several patches, and images that keep their own sizes.

    Returns:
        The configuration, of a Vision Transformer.

    Raises:
        OptionError: the message says what would work.
    """
    task = options.task
    if not isinstance(config, ViTConfig):
        raise OptionError(
            f"task={task} hides patches; {config.name} has none: use a Vision Transformer, "
            "such as ViT-B/16"
        )
    if config.fit == "native":
        raise OptionError(f"task={task} needs images of one size: set fit=crop, not native")
    if math.prod(config.grid) < 2:
        raise OptionError(
            f"task={task} needs several patches, and image_size={config.image_size} is one: use "
            f"--image-size {4 * config.patch}"
        )
    return config


def check_share(ratio: float, hidden: int, config: ViTConfig) -> None:
    """Refuse a share of which so many patches are hidden, none of them or all.

    Raises:
        OptionError: the message says what would work.
    """
    if hidden in (0, patches := math.prod(config.grid)):
        raise OptionError(
            f"mask_ratio={ratio:g} {'leaves' if hidden else 'hides'} none of the {patches} "
            "patches: set mask_ratio=0.5"
        )


def check_hidden(options: Pretext, config: ModelConfig) -> ViTConfig:
    """Refuse models whose patches cannot be hidden after the stem, and shares without a meaning.

    Returns:
        The configuration, of a Vision Transformer.

    Raises:
        OptionError: the message says what would work.
    """
    task, vit = options.task, check_patches(options, config)
    if not vit.tiled:
        raise OptionError(f"task={task} hides patches side by side: set stem=linear, stem_stride=0")
    for name in ("pool_mlp", "pre_logits"):
        if getattr(vit, name):
            raise OptionError(f"task={task} would leave {name} untrained: set {name}=0")
    if vit.pool == "attention":
        raise OptionError(f"task={task} would leave pool=attention untrained: set pool=mean")
    check_share(options.mask_ratio, hidden_count(options.mask_ratio, vit.grid), vit)
    return vit


def grid_of(images: Tensor, config: ViTConfig) -> Grid:
    """Return rows and columns of the patches of images (B, channels, H, W)."""
    return config.grid_of(images.shape[-2:])


class HiddenPatches(PretextTask):
    """A learned token for what is hidden, and a linear layer that predicts from final tokens.

    Args:
        options: of the recipe
        config: of the model
        guide: BEiT's tokenizer
        outputs: of the linear layer, for each patch
    """

    config: ViTConfig

    def __init__(
        self, options: Pretext, config: ModelConfig, guide: Model | None, outputs: int
    ) -> None:
        super().__init__(options, config, guide)
        assert isinstance(config, ViTConfig)
        self.token = nn.Parameter(torch.empty(1, 1, config.width))
        self.predict = nn.Linear(config.width, outputs)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw as BEiT's code: normals of 0.02, cut at one deviation, and a bias of zero."""
        for weight in (self.token, self.predict.weight):
            nn.init.trunc_normal_(weight, std=0.02, a=-0.02, b=0.02, generator=generator)
        nn.init.zeros_(self.predict.bias)

    def predicted(
        self, model: VisionTransformer, images: Tensor, patches: Tensor, places: Tensor
    ) -> Tensor:
        """Return what is predicted of hidden patches, float32 (B, K, outputs).

        Where the model's last norm is on what it pools (`norm_at=pooled`), it is applied to each
        token, so that it is trained too.

        Args:
            model: what learns
            images: of the patches, (B, channels, H, W)
            patches: the tokens that enter the first block, (B, P, D)
            places: of the hidden ones, int64 (B, K)
        """
        tokens = model.through(*model.embed(patches, grid_of(images, self.config)))
        normed = model.head.norm(tokens[:, model.config.prefix :])
        found: Tensor = self.predict(gathered(normed, places))
        return found.float()


def over_image(values: Tensor, grid: Grid, patch: int) -> Tensor:
    """Spread a value for each patch over its pixels: (B, P) -> (B, 1, H, W)."""
    square = values.unflatten(1, grid)
    return square.repeat_interleave(patch, 1).repeat_interleave(patch, 2)[:, None]


def covered(pixels: Tensor, masks: Tensor, grid: Grid) -> Tensor:
    """Return pixels in [0, 1], (B, C, H, W), with gray in place of hidden patches, (B, P) bool."""
    side = pixels.shape[-2] // grid[0]
    return torch.where(over_image(masks, grid, side), GRAY, pixels)
