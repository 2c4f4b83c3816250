"""The loss of labels and of a teacher's answers: hard, soft, or by its tokens."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.loading.batches import Batch
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.layers import reset_dense
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.classify import Classify
from vitlab.objectives.distill.teacher import Teacher
from vitlab.objectives.distill.two_heads import TwoHeads
from vitlab.objectives.objective_module import OwningObjective
from vitlab.recipes.distilling import Distill


def distillation(
    options: Distill,
    classify: Classify,
    config: ModelConfig,
    guide: Model,
    several: bool = False,
    kept: int = 0,
) -> "AnswerDistillation | FeatureDistillation":
    """Return the objective of a recipe with a teacher.

    Args:
        options: of the recipe
        classify: the loss of the labels
        config: of the student
        guide: the teacher, on the device
        several: the images have several labels each
        kept: how many images there are, if each is the same in every epoch; else 0
    """
    if options.distill == "features":
        return FeatureDistillation(options, classify, config, guide, kept)
    return AnswerDistillation(options, classify, config, guide, several, kept)


class AnswerDistillation(OwningObjective):
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
        kept: how many images there are, if each is the same in every epoch; else 0
    """

    figures: ClassVar[tuple[str, ...]] = ("correct", "agreed")

    def __init__(
        self,
        options: Distill,
        classify: Classify,
        config: ModelConfig,
        guide: Model,
        several: bool = False,
        kept: int = 0,
    ) -> None:
        super().__init__(config, guide)
        self.distill, self.classify, self.several = options, classify, several
        self.teacher = Teacher(guide, config, options.distill, kept)
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
        answers = self.teacher.answers(batch, model.training)
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

    def forget(self) -> None:
        """Forget the teacher's answers."""
        self.teacher.forget()

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


class FeatureDistillation(OwningObjective):
    """Labels, and a teacher's tokens by their cosine: (1 - w) L(z, y) + w (1 - cos).

    The cosine is the mean over all patches; where both models have a class token, it is the mean of
    that and the class tokens' own. A linear map brings tokens of another width to the teacher's.
    The teacher's grid of patches is resized to the student's (bilinear, antialiased). Neither has a
    paper that settles it: cosines of class token and patches with equal shares are our choice, near
    AM-RADIO's (Ranzinger et al., 2024, section 3.2), whose maps are MLPs.

    Args:
        options: of the recipe
        classify: the loss of the labels
        config: of the student
        guide: the teacher
        kept: how many images there are, if each is the same in every epoch; else 0
    """

    figures: ClassVar[tuple[str, ...]] = ("correct", "cosine")

    def __init__(
        self,
        options: Distill,
        classify: Classify,
        config: ModelConfig,
        guide: Model,
        kept: int = 0,
    ) -> None:
        super().__init__(config, guide)
        self.distill, self.classify = options, classify
        self.teacher = Teacher(guide, config, options.distill, kept)
        own, theirs = token_width(config), token_width(guide.config)
        self.projector = nn.Linear(own, theirs) if own != theirs else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the map to the teacher's width LeCun-normal."""
        if self.projector is not None:
            reset_dense(self.projector, generator)

    def loss(
        self, model: Model, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss of a batch, its correct answers, and the sum of its cosines."""
        theirs = self.teacher.answers(batch, model.training)
        tokens = model.encode(batch.images)
        scores = scores_of(model, tokens).float()
        own = (tokens if self.projector is None else self.projector(tokens)).float()
        cosine = self._cosine(own, theirs)
        share = self.distill.distill_weight
        base = self.classify.mean(scores, batch.labels)
        figures = {
            "correct": self.classify.correct(scores, batch.labels),
            "cosine": cosine.detach().sum(),
        }
        return (1 - share) * base + share * (1 - cosine.mean()), figures

    def forget(self) -> None:
        """Forget the teacher's answers."""
        self.teacher.forget()

    def _cosine(self, own: Tensor, theirs: Tensor) -> Tensor:
        """Return how alike the tokens of each image are, (B,); both have the teacher's width."""
        config, other = self.config, self.guide.config
        first, begin = prefix_of(config), prefix_of(other)
        wanted = on_grid(theirs[:, begin:], other.grid, config.grid)
        patches = F.cosine_similarity(own[:, first:], wanted, dim=-1).mean(-1)
        if not (has_token(config) and has_token(other)):
            return patches
        return (patches + F.cosine_similarity(own[:, 0], theirs[:, 0], dim=-1)) / 2


def scores_of(model: Model, tokens: Tensor) -> Tensor:
    """Return the class scores of tokens as `encode` gives them: (B, N, D) -> (B, classes)."""
    if isinstance(model, VisionTransformer):
        scores: Tensor = model.head(model.head.features(tokens))
        return scores
    classified: Tensor = model.get_submodule("classify")(tokens.mean(1))  # a ResNet's map
    return classified


def on_grid(patches: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Return patch tokens on another grid: (B, rows * columns, D) of the old to the new."""
    if old == new:
        return patches
    grid = patches.unflatten(1, old).permute(0, 3, 1, 2)
    return F.interpolate(grid, new, mode="bilinear", antialias=True).flatten(2).transpose(1, 2)


def token_width(config: ModelConfig) -> int:
    """Return the width of what `encode` gives."""
    if isinstance(config, ViTConfig):
        return config.width
    return config.features


def prefix_of(config: ModelConfig) -> int:
    """Return the number of tokens before the patches."""
    return config.prefix if isinstance(config, ViTConfig) else 0


def has_token(config: ModelConfig) -> bool:
    """Return whether a model has a class token."""
    return isinstance(config, ViTConfig) and config.has_token
