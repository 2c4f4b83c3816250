"""Crops that DINO and LeJEPA learn from: the base of both, the models that take them, the anchor.

Continued pre-training moves features to fit new images, and forgets what they were. What the anchor
keeps is how alike the patches of an image are, which leaves the features free to turn.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.loading.batch import Batch
from vitlab.data.loading.views import View
from vitlab.data.settings import Augment
from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.create import build
from vitlab.models.grid import nearest_sizes
from vitlab.models.model import Model
from vitlab.models.positions.positions import scheme_of
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.pretext_task import PretextTask
from vitlab.optim.averaging import follow
from vitlab.recipes.pretext import Pretext

LOCAL = 3 / 7  # of the image size: 96 of 224 pixels
BY_PASS = (  # what looks so, and not at a whole batch
    "at the images of one pass in one process: a smaller micro_batch, or more processes, change "
    "the result"
)
SECOND, SMALL = 0.1, 0.5  # how often other views than the first are blurred, as a share of it


def crop_views(options: Pretext, config: ModelConfig, augment: Augment) -> tuple[View, ...]:
    """Return the two large crops, then the small ones.

    As in facebookresearch/dino, the first large crop is blurred always, the second one time in ten,
    small ones half of the time, and the second alone is solarized: `blur` is the probability of the
    first, of which the others have a tenth and a half; `solarize` is that of the second.

    Args:
        options: of the small crops
        config: of the model, whose image size is that of the large ones
        augment: of the recipe; its `area` is the least of a large crop
    """
    area, blur = (augment.area, 1.0), augment.blur
    second = replace(augment, blur=SECOND * blur)
    small = replace(augment, blur=SMALL * blur, solarize=0.0)
    local = View(local_size(options, config), options.local_area, small)
    return (
        View(config.size, area, replace(augment, solarize=0.0)),
        View(config.size, area, second),
        *([local] * options.local_crops),
    )


def local_size(options: Pretext, config: ModelConfig) -> tuple[int, int]:
    """Return rows and columns of the small crops, in pixels."""
    if options.local_size:
        return options.local_size, options.local_size
    step = config.step
    rows, columns = (max(1, math.floor(LOCAL * n / step + 0.5)) * step for n in config.size)
    return rows, columns


def _check_local(options: Pretext, config: ModelConfig) -> None:
    size, step = local_size(options, config), config.step
    if any(side % step for side in size):
        raise OptionError(
            f"local_size={options.local_size} is not a multiple of patch={step}: try "
            f"{nearest_sizes(size, step)}"
        )
    if any(side > whole for side, whole in zip(size, config.size, strict=True)):
        raise OptionError(
            f"local_size={options.local_size} is larger than image_size={config.image_size}: "
            "choose a smaller one, or 0"
        )
    try:
        config.check_size(size)
        if isinstance(config, ViTConfig):
            with torch.device("meta"):
                for positions in scheme_of(config).of_layers(config):
                    positions.at(config.grid_of(size))
    except OptionError:
        raise OptionError(
            f"{config.name} takes images of one size only: set local_crops=0"
        ) from None


class GramAnchor(nn.Module):
    """The loss of DINOv3's Gram anchoring (Siméoni et al., 2025, section 4.2, equation 2).

    There the anchor is an earlier teacher; here it is the model as the run begins. Similarities
    are those within an image, as in the paper's equation, and their squared difference is the mean
    over pairs, as in its code.

    Args:
        config: of the model
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        model = build(config, torch.Generator().manual_seed(0)).requires_grad_(False)
        assert isinstance(model, VisionTransformer)
        self.model = model.eval()

    def start(self, model: Model) -> None:
        """Take over the weights that the run begins with."""
        follow(self.model, model, 0)

    def train(self, mode: bool = True) -> "GramAnchor":
        """Always evaluate."""
        return super().train(False)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss, a scalar.

        Args:
            images: as the model saw them, (B, channels, H, W)
            tokens: what it made of them, prefix and patches, (B, N, D)
        """
        with torch.no_grad():
            before = self.model.encode(images)
        prefix = self.model.config.prefix
        with torch.autocast(images.device.type, enabled=False):
            return (_alike(tokens[:, prefix:]) - _alike(before[:, prefix:])).square().mean()


class ComparedCrops(PretextTask):
    """The base of tasks that compare crops of an image, which may keep to the Gram anchor."""

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        super().__init__(options, config, guide)
        self.anchor = GramAnchor(config) if options.anchor else None

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse small crops that the patch does not divide, and models that take one size only.

        Raises:
            OptionError: the message says what would work.
        """
        if not isinstance(config, ViTConfig | ResNetConfig):
            raise OptionError(
                f"task={options.task} learns features; {config.name} has none: use a Vision "
                "Transformer, such as ViT-S/16"
            )
        if config.fit == "native":
            raise OptionError(
                f"task={options.task} needs images of one size: set fit=crop, not native"
            )
        if config.answers > 1:
            raise OptionError(f"task={options.task} needs one answer per image: set queries=1")
        least, most = options.local_area
        if least > most:
            raise OptionError(
                f"local_area={least:g}, {most:g} must go from the least to the greatest"
            )
        if options.local_crops:
            _check_local(options, config)
        if options.anchor and not isinstance(config, ViTConfig):
            raise OptionError(
                f"anchor compares patches; {config.name} has none: set anchor=0, or use a Vision "
                "Transformer"
            )

    def start(self, model: Model) -> None:
        """Begin with the model as the anchor."""
        if self.anchor is not None:
            self.anchor.start(model)

    def crops(self, model: Model, batch: Batch) -> tuple[Tensor, list[Tensor], Tensor | float]:
        """Return large crops, features of these and of any small ones, and the loss of the anchor.

        Those of both crops are one after the other, (2 B, channels, H, W).
        """
        crops = [each.images for each in (batch, *batch.views)]
        views = [each for each in crops if isinstance(each, Tensor)]
        large, small = torch.cat(views[:2]), views[2:]
        moved: Tensor | float = 0.0
        if self.anchor is None:
            features = [model.features(large)]
        else:
            assert isinstance(model, VisionTransformer)
            tokens = model.encode(large)
            features, moved = [model.head.features(tokens)], self.anchor(large, tokens)
        if small:
            features.append(model.features(torch.cat(small)))
        return large, features, moved


def _alike(patches: Tensor) -> Tensor:
    """Return the cosine of each pair of an image's patches: (B, P, D) -> (B, P, P)."""
    unit = F.normalize(patches.float(), dim=-1)
    return unit @ unit.mT
