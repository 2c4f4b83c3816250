"""Segmentation: the class of each pixel, by a linear layer of patches or by learned queries.

The layer is that of a run of `vitlab probe --task segment`, which says classes and layers, too.
Here it learns on with the model, or with a part of it, as LP-FT does (Kumar et al., Fine-tuning can
distort pretrained features and underperform out-of-distribution, 2022): a fitted head moves the
features less than one that knows nothing. The loss is the cross-entropy of pixels, of scores that
are resized bilinearly; it is a mean over an image and then over images, so that passes and
processes add up to a batch.

Queries begin anew. Each class in an image is a segment; queries and segments are paired at the
least cost (objectives/matching.py). Cost and loss are Mask2Former's (Cheng et al., 2022), as EoMT
has them: 2 for the class, 5 for the mask's binary cross-entropy, 5 for its dice, after each of the
last blocks. Pixels that do not count are left out. The cost is of coarse masks, the loss of full
ones, of all pixels instead of points that are drawn. EoMT's attention within masks, which it
anneals away over the run, is left out: a query sees every patch from the start.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from vitlab.data.loading.batch import Batch
from vitlab.data.target import IGNORED, Target
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.heads.queries import check_queries
from vitlab.models.heads.segment import (
    DenseClasses,
    MaskHead,
    PatchLayer,
    Segmenter,
    check_spec,
    semantic,
)
from vitlab.models.model import Model
from vitlab.objectives.matching import Pairs, chances_of, class_loss, paired, shares_of
from vitlab.objectives.pretext_task import LossFigures, PretextTask
from vitlab.recipes.pretext import Pretext

CLASS, MASK, DICE = 2.0, 5.0, 5.0  # weights of a query's class, of its mask, of its mask's overlap


class Segment(PretextTask):
    """Predict the class of each pixel, which are the labels of a batch: int16 (B, H, W).

    Args:
        options: of the recipe
        config: of the model
        about: classes and layers
        weight: of the fitted layer, (classes, features)
        bias: (classes,)
    """

    figures: ClassVar[tuple[str, ...]] = ("pixel_accuracy",)

    def __init__(
        self,
        options: Pretext,
        config: ModelConfig,
        about: DenseClasses,
        weight: Tensor,
        bias: Tensor,
    ) -> None:
        super().__init__(options, config)
        self.head: PatchLayer | MaskHead = PatchLayer(about, weight, bias)
        if options.mask_queries:
            queries, blocks = options.mask_queries, options.query_blocks
            self.head = MaskHead(config, replace(about, layers=(), queries=queries, blocks=blocks))

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse a model whose images keep their own size, or whose blocks queries cannot pass."""
        check_spec(config)
        if queries := options.mask_queries:
            check_queries(config, queries, options.query_blocks, f"mask_queries={queries}")

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw queries and what reads them; a layer has been fitted."""
        if isinstance(self.head, MaskHead):
            self.head.reset_parameters(generator)

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the loss, and of each image the share of the pixels that are right."""
        del generator  # nothing is drawn
        images, truth = batch.images, batch.labels.long()
        assert isinstance(images, Tensor)
        if isinstance(self.head, MaskHead):
            answers = [(own.float(), mask.float()) for own, mask in self.head(model, images)]
            with torch.autocast(truth.device.type, enabled=False):  # products are sums of pixels
                scores, classes = resized(semantic(*answers[-1]), truth), segments_of(truth)
                losses = [segment_loss(*each, truth, classes) for each in answers]
            loss = torch.stack(losses).sum()
        else:
            scores = resized(self.head.scores(model, images).float(), truth)
            error = F.cross_entropy(scores, truth, ignore_index=IGNORED, reduction="none")
            loss = (error.sum((1, 2)) / counted(truth)).mean()
        right = (scores.argmax(1) == truth).sum((1, 2)) / counted(truth)
        return loss, {"pixel_accuracy": right.sum()}

    def answering(self, model: Model, labels: Target) -> Segmenter:
        """Return what is kept of a run."""
        return Segmenter(model, self.head)


def resized(maps: Tensor, truth: Tensor) -> Tensor:
    """Return maps (B, …, rows, columns) at the size of masks (B, H, W)."""
    return F.interpolate(maps, truth.shape[1:], mode="bilinear")


def counted(truth: Tensor) -> Tensor:
    """Return how many pixels of each image count, at least 1: (B, H, W) -> (B,)."""
    return (truth != IGNORED).sum((1, 2)).clamp(min=1)


# Queries


def segments_of(truth: Tensor) -> Tensor:
    """Return the classes in each image, (B, H, W) -> (B, segments), -1 where it has fewer."""
    found = [each[each != IGNORED].unique() for each in truth]
    return pad_sequence(found, batch_first=True, padding_value=-1)


def mask_costs(masks: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of binary cross-entropy and dice, of each query with each segment.

    Args:
        masks: logits (B, queries, pixels)
        wanted: the share of a segment in each pixel, (B, segments, pixels)
        weights: the share of each pixel that counts, (B, 1, pixels)

    Returns:
        (B, queries, segments).
    """
    whole, likely, wanted = weights.sum(-1, keepdim=True), masks.sigmoid(), wanted.mT
    error = (F.softplus(masks) * weights).sum(-1, keepdim=True) - masks @ wanted
    sums = (likely * weights).sum(-1, keepdim=True) + wanted.sum(1, keepdim=True)
    return MASK * error / whole.clamp(min=1) + DICE * (1 - (2 * likely @ wanted + 1) / (sums + 1))


@torch.no_grad()
def matched_segments(scores: Tensor, masks: Tensor, truth: Tensor, classes: Tensor) -> Pairs:
    """Pair queries and segments of each image, by masks as coarse as the queries' are.

    Args:
        scores: (B, queries, classes + 1)
        masks: logits (B, queries, rows, columns)
        truth: the class of each pixel, (B, H, W)
        classes: of `segments_of`
    """
    chances, costs = chances_of(scores, classes), []
    for mask, own, there, chance in zip(masks, truth, classes, chances, strict=True):
        there = there[there >= 0]
        wanted = torch.stack([own != IGNORED, *(own == each for each in there)]).float()
        coarse = F.adaptive_avg_pool2d(wanted, mask.shape[1:]).flatten(1)[None]
        [cost] = mask_costs(mask.flatten(1)[None], coarse[:, 1:], coarse[:, :1])
        costs.append(cost - CLASS * chance[:, : len(there)])
    return paired(costs)


def segment_loss(scores: Tensor, masks: Tensor, truth: Tensor, classes: Tensor) -> Tensor:
    """Return the loss of one block's answers, given as `matched_segments` takes them."""
    pairs = image, query, own = matched_segments(scores, masks, truth, classes)
    own_truth = truth[image]
    found = resized(masks[image, query][:, None], truth).flatten(2)
    wanted = (own_truth == classes[image, own][:, None, None]).float()[:, None].flatten(2)
    weights = (own_truth != IGNORED).float()[:, None].flatten(2)
    costs = mask_costs(found, wanted, weights).flatten()
    apart = (costs * shares_of(classes)[image]).sum() / len(truth)
    return CLASS * class_loss(scores, classes, pairs) + apart
