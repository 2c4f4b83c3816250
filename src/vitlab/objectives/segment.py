"""Segmentation: the class of each pixel, by a linear layer of patches that was fitted before.

The layer is that of a run of `vitlab probe --task segment`, which says classes and layers, too.
Here it learns on with the model, or with a part of it, as LP-FT does (Kumar et al., Fine-tuning can
distort pretrained features and underperform out-of-distribution, 2022): a fitted head moves the
features less than one that knows nothing. The loss is the cross-entropy of pixels, of scores that
are resized bilinearly; it is a mean over an image and then over images, so that passes and
processes add up to a batch.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.loading.batches import Batch
from vitlab.data.masks import IGNORED
from vitlab.models.config import ModelConfig
from vitlab.models.model import Model
from vitlab.objectives.pretext_task import PretextTask
from vitlab.recipes.pretext import Pretext
from vitlab.weights.segmenter import DenseClasses, Segmenter, check_spec, patch_scores


class Segment(PretextTask):
    """Predict the class of each pixel, which are the labels of a batch: int16 (B, H, W).

    Args:
        options: of the recipe
        config: of the model
        guide: None
        about: classes and layers
        weight: of the fitted layer, (classes, features)
        bias: (classes,)
    """

    figures: ClassVar[tuple[str, ...]] = ("pixel_accuracy",)

    def __init__(
        self,
        options: Pretext,
        config: ModelConfig,
        guide: Model | None,
        about: DenseClasses,
        weight: Tensor,
        bias: Tensor,
    ) -> None:
        super().__init__(options, config, guide)
        self.about, self.weight, self.bias = about, nn.Parameter(weight), nn.Parameter(bias)

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse a model whose images keep their own size."""
        check_spec(config)

    def loss(
        self, model: Model, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and of each image the share of the pixels that are right."""
        del generator  # nothing is drawn
        images, truth = batch.images, batch.labels.long()
        assert isinstance(images, Tensor)
        coarse = patch_scores(model, images, self.about, self.weight, self.bias)
        scores = F.interpolate(coarse.float(), truth.shape[1:], mode="bilinear")
        error = F.cross_entropy(scores, truth, ignore_index=IGNORED, reduction="none")
        pixels = (truth != IGNORED).sum((1, 2)).clamp(min=1)
        right = (scores.argmax(1) == truth).sum((1, 2)) / pixels
        return (error.sum((1, 2)) / pixels).mean(), {"pixel_accuracy": right.sum()}

    def segmenter(self, model: Model) -> Segmenter:
        """Return what is kept of a run, with copies of the layer."""
        return Segmenter(model, self.about, self.weight.detach(), self.bias.detach())
