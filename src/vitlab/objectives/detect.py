"""Object detection: learned queries are matched with the objects of each image (DETR).

Carion et al., End-to-end object detection with transformers, 2020 (facebookresearch/detr): the cost
of a pair (objectives/matching.py) is that of the class's probability with weight 1, of the L1
distance of boxes with 5, of their generalized IoU with 2; the loss is the cross-entropy of classes,
and 5 and 2 times the L1 distance and 1 - GIoU of pairs, summed over the last blocks, each with a
matching of its own.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitlab.data.box_geometry import SURE, framed, overlap
from vitlab.data.loading.batch import Batch
from vitlab.data.target import Target
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.heads.detect import BoxClasses, BoxHead, Detector, check_boxes, corners
from vitlab.models.model import Model
from vitlab.objectives.matching import Pairs, chances_of, class_loss, paired, shares_of
from vitlab.objectives.pretext_task import LossFigures, PretextTask, as_pictures, unit_pixels
from vitlab.recipes.pretext import Pretext

L1, GIOU, TINY = 5.0, 2.0, 1e-9  # weights: of distances, of overlaps


class Detect(PretextTask):
    """Predict the objects of images, which are the labels of a batch: `data.boxes.Boxes`.

    Args:
        options: of the recipe
        config: of the model
        classes: of objects
    """

    figures: ClassVar[tuple[str, ...]] = ("class_accuracy", "box_overlap")

    def __init__(
        self,
        options: Pretext,
        config: ModelConfig,
        classes: tuple[str, ...] = ("object",),
    ) -> None:
        super().__init__(options, config)
        self.head = BoxHead(config, _about(options, classes))

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse a model whose blocks queries cannot pass."""
        check_boxes(config, _about(options, ()))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw queries and heads."""
        self.head.reset_parameters(generator)

    def answering(self, model: Model, labels: Target) -> Detector:
        """Return what is kept of a run."""
        return Detector(model, self.head)

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the loss, and of the objects of each image the shares that are found.

        `class_accuracy` is the share with the right class, `box_overlap` their mean IoU, after the
        last block and the best matching, of each image with objects.
        """
        del generator  # nothing is drawn
        total, objects = torch.zeros((), device=batch.labels.device), batch.labels
        pairs: Pairs | None = None
        for scores, boxes in self.head(model, batch.images):
            scores, boxes = scores.float(), boxes.float()
            pairs = matched(scores, boxes, objects)
            total = total + detection_loss(scores, boxes, objects, pairs)
        assert pairs is not None
        image, query, own = pairs
        found, truth = corners(boxes[image, query]), objects[image, own]
        each = shares_of(objects[..., 0])[image]
        right = scores[image, query].argmax(-1) == truth[:, 0]
        figures = {
            "class_accuracy": (right * each).sum(),
            "box_overlap": (overlap(found, truth[:, 1:])[0] * each).sum(),
        }
        return total, figures

    def pictures(
        self, model: Model, images: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return a few images, and what is found in them."""
        del generator
        chances, boxes = Detector(model, self.head)(images)
        shown, (rows, columns) = as_pictures(unit_pixels(images, self.config)), images.shape[2:]
        places = (boxes * boxes.new_tensor([columns, rows, columns, rows])).cpu()
        found = [
            torch.from_numpy(np.array(framed(pixels.numpy(), own[sure])))
            for pixels, own, sure in zip(
                shown.cpu(), places, chances.amax(-1).cpu() >= SURE, strict=True
            )
        ]
        return {"image": shown, "found": torch.stack(found)}


def _about(options: Pretext, classes: tuple[str, ...]) -> BoxClasses:
    return BoxClasses(classes, options.object_queries, options.query_blocks)


@torch.no_grad()
def matched(scores: Tensor, boxes: Tensor, objects: Tensor) -> Pairs:
    """Pair queries and objects of each image at the least cost; no query has two objects.

    Args:
        scores: (B, queries, classes + 1)
        boxes: centers and sides, (B, queries, 4)
        objects: `data.boxes.Boxes`
    """
    classes, truth = objects[..., 0].long(), objects[..., 1:]
    near = torch.cdist(boxes, centered(truth), p=1)
    shared = overlap(corners(boxes)[:, :, None], truth[:, None])[1]
    cost = L1 * near - chances_of(scores, classes) - GIOU * shared
    counts = (classes >= 0).sum(1).tolist()
    return paired([each[:, :n] for each, n in zip(cost, counts, strict=True)])


def detection_loss(scores: Tensor, boxes: Tensor, objects: Tensor, pairs: Pairs) -> Tensor:
    """Return DETR's loss of one block's answers, given as `matched` takes them."""
    image, query, own = pairs
    classes, truth, found = objects[..., 0].long(), objects[image, own], boxes[image, query]
    distance = (found - centered(truth[:, 1:])).abs().sum(-1)
    apart = 1 - overlap(corners(found), truth[:, 1:])[1]
    near = ((L1 * distance + GIOU * apart) * shares_of(classes)[image]).sum() / len(objects)
    return class_loss(scores, classes, pairs) + near


def centered(boxes: Tensor) -> Tensor:
    """Return centers and sides of left, top, right, bottom, (…, 4)."""
    return torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)
