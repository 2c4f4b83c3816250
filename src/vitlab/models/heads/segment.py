"""The segmenter: a model, and a classifier of its patches.

The classifier is linear, as in DINOv2's protocol (dinov2/eval/segmentation): the patch tokens of
one layer, or of the last few one after the other, each after the final norm; one layer. Or it is
learned queries (queries.py), each a class, or none, and a mask, the product of the query and
upscaled patches (EoMT, after Mask2Former: Cheng et al., 2022); a class has the sum over the queries
of its probability times the mask's. Scores are resized bilinearly to the pixels of the input.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import DataError, OptionError
from vitlab.images import ImageSpec
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.heads.mask_classes import LARGEST, MaskClasses
from vitlab.models.heads.queries import (
    check_query_counts,
    leaving,
    reset_queries,
    three_layers,
)
from vitlab.models.model import Model
from vitlab.values import check_names

WIDEST = 32  # times the side of the input, of a resized image


@dataclass(frozen=True)
class DenseClasses(MaskClasses):
    """What a segmenter's outputs are, and how images are brought to it.

    Attributes:
        classes: names, in the order of the outputs
        values: the number of each class in a mask
        ignored: the number of pixels that do not count; None for none
        layers: whose patch tokens are seen, as `Model.intermediates` counts them
        scale: the shorter side of a resized image, in sides of the input; windows slide over it
        queries: learned ones; 0 for a linear layer
        blocks: the last ones, which queries pass

    Raises:
        OptionError: names, numbers or counts that cannot be.
    """

    layers: tuple[int, ...] = ()
    scale: float = 1.0
    queries: int = 0
    blocks: int = 0

    def __post_init__(self) -> None:
        """Check names, numbers and counts."""
        check_names(self.classes, "class")
        if len(self.values) != len(self.classes):
            raise OptionError(f"{len(self.values)} numbers for {len(self.classes)} classes")
        numbers = [*self.values, *([] if self.ignored is None else [self.ignored])]
        if len(set(numbers)) < len(numbers) or not all(0 <= each < LARGEST for each in numbers):
            raise OptionError(
                f"the numbers of classes in masks must be different, from 0 to {LARGEST - 1:,}"
            )
        if not 0 < self.scale <= WIDEST:
            raise OptionError(f"scale={self.scale:g}, but it must be above 0, at most {WIDEST}")
        if self.queries:
            check_query_counts(self.queries, self.blocks)
        elif not self.layers or self.blocks:
            raise OptionError("a linear layer needs the layers of its patches, and no blocks")


class PatchLayer(nn.Module):
    """A linear layer of patches.

    Attributes:
        about: its classes, and whose patches
        weight: (classes, features); bias: (classes,)
    """

    def __init__(self, about: DenseClasses, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.about = about
        self.weight = nn.Parameter(weight.float().contiguous())
        self.bias = nn.Parameter(bias.float())

    def scores(self, model: Model, images: Tensor) -> Tensor:
        """Compute class scores of every patch: (B, classes, rows, columns)."""
        return self.conclude(*self.evidence(model, images))

    def evidence(self, model: Model, images: Tensor) -> tuple[Tensor]:
        """Compute the features of every patch, (B, features, rows, columns)."""
        return (patch_features(model, images, self.about.layers),)

    def conclude(self, features: Tensor) -> Tensor:
        """Return class scores of features."""
        return F.conv2d(features, self.weight[:, :, None, None], self.bias)


class Upscale(nn.Module):
    """Twice the rows and columns of a map, by a transposed and a depthwise convolution (EoMT)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 4 * width)
        self.near = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, maps: Tensor) -> Tensor:
        """Upscale: (B, D, rows, columns) -> (B, D, 2 rows, 2 columns)."""
        wide = F.pixel_shuffle(self.wide(maps.movedim(1, -1)).movedim(-1, 1), 2)
        return self.norm(self.near(F.gelu(wide)).movedim(1, -1)).movedim(-1, 1)


class MaskHead(nn.Module):
    """Queries, and what reads a class and a mask from each as it leaves a block.

    Args:
        config: of the model, as `queries.check_queries` has it
        about: its classes and queries
    """

    def __init__(self, config: ModelConfig, about: DenseClasses) -> None:
        super().__init__()
        assert isinstance(config, ViTConfig)
        # to 4 to 8 pixels
        width = config.width
        doublings = max(1, config.patch.bit_length() - 3)
        self.about = about
        self.queries = nn.Parameter(torch.empty(about.queries, width))
        self.classify = nn.Linear(width, len(about.classes) + 1)
        self.embed = three_layers(width, width)
        self.upscale = nn.Sequential(*(Upscale(width) for _ in range(doublings)))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight; a depthwise convolution begins as the identity."""
        reset_queries(self, self.queries, generator)
        for layer in self.upscale.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.dirac_(layer.weight, layer.groups)

    def forward(self, model: Model, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Find segments in normalized images, (B, channels, H, W).

        Returns:
            Of each of the last blocks scores (B, queries, classes + 1), the last for no segment,
            and masks in logits (B, queries, rows, columns), of 4 to 8 pixels each.
        """
        every = leaving(model, images, self.queries, self.about.blocks)
        return [self.answer(model, images, tokens) for tokens in every]

    def answer(self, model: Model, images: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Read classes and masks from the tokens that leave a block, as `forward` returns them."""
        patches, queries = tokens.tensor_split([tokens.shape[1] - len(self.queries)], 1)
        maps = self.upscale(model.as_map(patches, (images.shape[2], images.shape[3])).map)
        return self.classify(queries), torch.einsum("bqd,bdhw->bqhw", self.embed(queries), maps)

    def scores(self, model: Model, images: Tensor) -> Tensor:
        """Compute the share of each class, (B, classes, rows, columns), after the last block."""
        return self.conclude(*self.evidence(model, images))

    def evidence(self, model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute scores and masks after the last block, as `forward` has them."""
        *_, last = leaving(model, images, self.queries, self.about.blocks)
        return self.answer(model, images, last)

    def conclude(self, scores: Tensor, masks: Tensor) -> Tensor:
        """Return the share of each class in each place."""
        return semantic(scores, masks)


def semantic(scores: Tensor, masks: Tensor) -> Tensor:
    """Return the share of each class in each place, (B, classes, rows, columns), of answers."""
    return torch.einsum("bqc,bqhw->bchw", scores.softmax(-1)[..., :-1], masks.sigmoid())


class Segmenter(nn.Module):
    """Class scores of every pixel: normalized (B, channels, H, W) -> (B, classes, H, W).

    Attributes:
        model: whose patch tokens are classified
        head: that classifies them
    """

    def __init__(self, model: Model, head: PatchLayer | MaskHead) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.eval()

    @property
    def about(self) -> DenseClasses:
        """Its classes."""
        return self.head.about

    def forward(self, images: Tensor) -> Tensor:
        """Compute class scores of every pixel."""
        return self.conclude(images, *self.evidence(images))

    def evidence(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the features of patches; or the queries' scores and masks in logits."""
        return self.head.evidence(self.model, images)

    def conclude(self, images: Tensor, *evidence: Tensor) -> Tensor:
        """Return the class scores of every pixel that `evidence` stands for."""
        scores = self.head.conclude(*evidence)
        return F.interpolate(scores, images.shape[2:], mode="bilinear", align_corners=False)

    def coarse(self, images: Tensor) -> Tensor:
        """Compute class scores of every patch, or finer: (B, classes, rows, columns)."""
        return self.head.scores(self.model, images)

    def tensors(self) -> dict[str, Tensor]:
        """Return those of the classifier, by name."""
        return self.head.state_dict()


def patch_features(model: Model, images: Tensor, layers: tuple[int, ...]) -> Tensor:
    """Compute the patch tokens of layers, one after the other: (B, features, rows, columns)."""
    found = model.intermediates(images, layers, norm=True, maps=True)
    return torch.cat([each.map for each in found], 1)


def check_spec(spec: ImageSpec) -> None:
    """Refuse models whose images keep their own size.

    Raises:
        DataError: it is such a model.
    """
    if spec.fit == "native":
        raise DataError("segmentation slides windows of one size: not with fit=native")
