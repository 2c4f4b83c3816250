"""The loss of labels and of a teacher's answers, hard or soft."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.loading.batches import Batch
from vitlab.models.config import ModelConfig
from vitlab.models.model import Model
from vitlab.objectives.classify import Classify
from vitlab.objectives.distill.teacher import Teacher
from vitlab.objectives.distill.two_heads import TwoHeads
from vitlab.objectives.objective_module import OwningObjective
from vitlab.recipes.distilling import Distill


class Distillation(OwningObjective):
    """Labels and a teacher's decisions (hard) or probabilities (soft).

    hard: the teacher's decision is a label too, (1 - w) L(z, y) + w L(z, y_t) (DeiT, equation 3,
    with w = 0.5). Where the recipe's loss has a sigmoid per class, so has the teacher's share; it
    is not smoothed, nor weighted by class. With mixed images it is what the teacher says of the
    mixed image.

    soft: (1 - w) L(z, y) + w T^2 KL(p_t || p), with both softened by the temperature T (equation 2;
    Hinton et al., 2015), summed over classes. DeiT's code divides by the number of classes as well;
    timm does not. Where the loss has a sigmoid per class, the sum is over each class's yes and no,
    averaged over classes if the loss is.

    With a distillation token, L(z, y) takes the scores of the class token and the teacher's share
    those of the distillation token (DeiT, section 4; see `TwoHeads`).

    Args:
        options: of the recipe
        classify: the loss of the labels
        config: of the student
        guide: the teacher
        several: the images have several labels each
    """

    figures: ClassVar[tuple[str, ...]] = ("correct", "agreed")

    def __init__(
        self,
        options: Distill,
        classify: Classify,
        config: ModelConfig,
        guide: Model,
        several: bool = False,
    ) -> None:
        super().__init__(config, guide)
        self.distill, self.classify, self.several = options, classify, several
        self.teacher = Teacher(guide, config, options.distill)
        self.heads = TwoHeads(config.classes) if options.distill_token else None
        self.taught = replace(
            classify, label_smoothing=0.0, threshold=None, weights=None, gamma=None, own=None
        )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start with equal biases of the two classifiers."""
        if self.heads is not None:
            self.heads.reset_parameters()

    def loss(
        self, model: Model, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss of a batch, its correct answers and those that are the teacher's."""
        answers = self.teacher.answers(batch)
        if self.heads is None:
            scores = own = taught = model(batch.images).float()
        else:
            assert isinstance(batch.images, Tensor)
            own, taught = (each.float() for each in self.heads(model, batch.images))
            scores = (own + taught) / 2
        share = self.distill.distill_weight
        lesson = self._hard if self.distill.distill == "hard" else self._soft
        mean = (1 - share) * self.classify.mean(own, batch.labels) + share * lesson(taught, answers)
        figures = {
            "correct": self.classify.correct(scores, batch.labels),
            "agreed": self.classify.correct(scores, answers),
        }
        return mean, figures

    def _hard(self, scores: Tensor, decisions: Tensor) -> Tensor:
        """Return the mean loss of scores (B, classes) with what the teacher decided."""
        return self.taught.mean(scores, decisions)

    def _soft(self, scores: Tensor, answers: Tensor) -> Tensor:
        """Return the mean divergence of scores (B, classes) from the teacher's."""
        heat = self.distill.distill_temperature
        own, theirs = scores / heat, answers / heat
        if self.classify.kind == "softmax":
            table = F.kl_div(
                own.log_softmax(-1), theirs.log_softmax(-1), reduction="none", log_target=True
            )
        else:
            table = yes_and_no(own, theirs.sigmoid() if self.several else theirs.softmax(-1))
        divergence = table.sum(-1).mean() * heat**2
        return divergence / scores.shape[-1] if self.classify.kind == "bce" else divergence


def yes_and_no(scores: Tensor, chances: Tensor) -> Tensor:
    """Return KL(p || sigmoid(z)) of each class's yes and no: two times (B, classes) to one."""
    entropy = -torch.special.xlogy(chances, chances) - torch.special.xlogy(1 - chances, 1 - chances)
    return F.binary_cross_entropy_with_logits(scores, chances, reduction="none") - entropy
