"""The detector: learned queries among a Vision Transformer's tokens, each a class and a box.

Queries (queries.py) leave as one object each, or none; the heads are DETR's (Carion et al., 2020).
Each has a first box, which learns too and adds to its answer in logits (DAB-DETR: Liu et al.,
2022), and begins as the token of the patch there plus a learned one: without that token, a small
model learns much more slowly.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.heads.queries import (
    check_queries,
    check_query_counts,
    leaving,
    reset_queries,
    three_layers,
)
from vitlab.models.model import Model
from vitlab.on_device import sent
from vitlab.values import check_names

FIRST = 0.25  # sides of the first boxes, in shares of the image's


@dataclass(frozen=True)
class BoxClasses:
    """What a detector finds.

    Attributes:
        classes: names, in the order of the scores
        queries: objects in an image, at most
        blocks: the last ones, which queries pass

    Raises:
        OptionError: names that cannot be, or no queries or blocks.
    """

    classes: tuple[str, ...]
    queries: int
    blocks: int

    def __post_init__(self) -> None:
        """Check the names and counts."""
        check_names(self.classes, "class")
        check_query_counts(self.queries, self.blocks)


class BoxHead(nn.Module):
    """Queries, and what reads a class and a box from each as it leaves a block.

    Args:
        config: of the model, as `check_boxes` has it
        about: its classes and queries
    """

    def __init__(self, config: ModelConfig, about: BoxClasses) -> None:
        super().__init__()
        assert isinstance(config, ViTConfig)
        width = config.width
        self.about = about
        self.queries = nn.Parameter(torch.empty(about.queries, width))
        self.places = nn.Parameter(torch.empty(about.queries, 4))
        self.classify = nn.Linear(width, len(about.classes) + 1)
        self.locate = three_layers(width, 4)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight; the first boxes lie on a grid."""
        reset_queries(self, self.queries, generator)
        centers = first_centers(len(self.places))
        self.places.data.copy_(torch.cat([centers, torch.full_like(centers, FIRST)], 1).logit())
        nn.init.zeros_([*self.locate.parameters()][-2])

    def forward(self, model: Model, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Find objects in normalized images, (B, channels, H, W).

        Returns:
            Of each of the last blocks scores (B, queries, classes + 1), the last for no object, and
            boxes (B, queries, 4): centers and sides in shares of the image's.
        """
        assert isinstance(model.config, ViTConfig)
        found = []
        under = self.under(model.config, images)
        for tokens in leaving(model, images, self.queries, self.about.blocks, under):
            queries = tokens[:, -len(self.queries) :]
            boxes = (self.locate(queries) + self.places).sigmoid()
            found.append((self.classify(queries), boxes))
        return found

    def under(self, config: ViTConfig, images: Tensor) -> Tensor:
        """Return which token each query begins as: the patch under its first box, (queries,)."""
        rows, columns = config.grid_of(images.shape[-2:])
        across, down = (first_centers(len(self.queries)) * torch.tensor([columns, rows])).long().T
        return sent(config.prefix + down * columns + across, images.device)


def first_centers(count: int) -> Tensor:
    """Return points on a grid, (count, 2), in shares of the image's width and height."""
    side = math.ceil(math.sqrt(count))
    steps = (torch.arange(side) + 0.5) / side
    chosen = torch.linspace(0, side * side - 1, count).round().long()
    return torch.cartesian_prod(steps, steps)[chosen]


def check_boxes(config: ModelConfig, about: BoxClasses) -> None:
    """Refuse a model whose blocks queries cannot pass, or that sees a part of an image.

    Raises:
        OptionError: the message says what would work.
    """
    check_queries(config, about.queries, about.blocks, "task=detect")
    if config.fit != "squash" or config.crop != 1:
        raise OptionError("task=detect needs the whole image: set fit=squash and crop=1")


class Detector(nn.Module):
    """Objects of images: normalized (B, channels, H, W) -> probabilities and boxes.

    Attributes:
        model: that queries pass
        head: with the queries
    """

    def __init__(self, model: Model, head: BoxHead) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.eval()

    @property
    def about(self) -> BoxClasses:
        """Its classes and queries."""
        return self.head.about

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, queries, classes) probabilities and (B, queries, 4) boxes.

        Boxes are left, top, right, bottom in shares of the image's sides.
        """
        return self.conclude(images, *self.evidence(images))

    def evidence(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and boxes of the last block, as the head has them."""
        found: tuple[Tensor, Tensor] = self.head(self.model, images)[-1]
        return found

    def conclude(self, images: Tensor, scores: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities and boxes that `evidence` stands for."""
        return scores.softmax(-1)[..., :-1], corners(boxes).clamp(0, 1)

    def tensors(self) -> dict[str, Tensor]:
        """Return queries and heads by name."""
        return self.head.state_dict()


def corners(boxes: Tensor) -> Tensor:
    """Return left, top, right, bottom of centers and sides, (…, 4)."""
    centers, sides = boxes.chunk(2, -1)
    return torch.cat([centers - sides / 2, centers + sides / 2], -1)
