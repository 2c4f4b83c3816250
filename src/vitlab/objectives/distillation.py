"""Distillation: the loss of labels and of a teacher's answers, hard or soft.

DeiT's distillation token is a second token, whose classifier learns what the teacher says (Touvron
et al., Training data-efficient image transformers & distillation through attention, 2021, section
4). The two classifiers' scores are averaged when tested.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.labels import kind_of
from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.classify import Classify
from vitlab.objectives.pretext_task import LossFigures, OwningObjective
from vitlab.recipes.losses import Distill

WITHOUT = "leave distill_token out, so that the same scores learn from both"


def with_distillation_token(config: ModelConfig, trained: bool = False) -> ViTConfig:
    """Return a model's configuration with a distillation token; one that has it stays as it is.

    The token is a register that the classifier sees beside the class token (`pool=prefix`): the
    form in which DeiT's released models are loaded and saved.

    Args:
        config: of the student
        trained: its weights are there already, so that no token can be added

    Raises:
        OptionError: a model that cannot have one.
    """
    if not isinstance(config, ViTConfig):
        raise OptionError(f"{config.name} has no tokens to distill into: {WITHOUT}")
    if config.pre_logits:
        raise OptionError(
            f"distill_token cannot go with pre_logits: set pre_logits=0, or {WITHOUT}"
        )
    if config.pool == "prefix" and config.has_token:
        if config.pooled == 2 * config.width:
            return config
        seen = config.pooled // config.width
        raise OptionError(
            f"distill_token averages two tokens, but pool=prefix sees {seen}: set pool=token"
        )
    if trained:
        raise OptionError(
            "distill_token needs weights with a distillation token, such as DeiT's distilled ones: "
            "choose them, or leave it out"
        )
    if config.pool != "token" or config.norm_at == "pooled":
        raise OptionError(
            f"distill_token averages two tokens, but pool={config.pool}, norm_at={config.norm_at}: "
            "set pool=token and norm_at=tokens"
        )
    both = (0, config.prefix) if config.registers else ()
    return replace(
        config, pool="prefix", class_token=True, registers=config.registers + 1, pool_tokens=both
    )


class TwoHeads(nn.Module):
    """The scores of class token and distillation token, of the one classifier that averages them.

    With a kernel W = (W_1, W_2) and bias b over both tokens x_1 and x_2, the model's scores are
    W_1 x_1 + W_2 x_2 + b. They are the mean of 2 W_1 x_1 + b + d and 2 W_2 x_2 + b - d. Only d, the
    difference of the biases, which the mean does not show, is held here. Compared with DeiT, where
    the kernels are 2 W_1 and 2 W_2, Adam moves the classifier twice as far at the same rate.

    Args:
        classes: their number
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.difference = nn.Parameter(torch.zeros(classes))

    def reset_parameters(self) -> None:
        """Start with equal biases."""
        nn.init.zeros_(self.difference)

    def forward(self, model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return what either token says of images (B, C, H, W): two times (B, classes)."""
        assert isinstance(model, VisionTransformer)
        classify = model.head.classify
        assert isinstance(classify, nn.Linear)
        tokens = model.features(images).chunk(2, dim=-1)
        kernels = classify.weight.chunk(2, dim=1)
        biases = classify.bias + self.difference, classify.bias - self.difference
        own, taught = (
            F.linear(token, 2 * kernel, bias)
            for token, kernel, bias in zip(tokens, kernels, biases, strict=True)
        )
        return own, taught


Wanted = Literal["hard", "soft"]


class Teacher:
    """A frozen model that sees a student's images as it takes them, in the student's precision.

    It is no module, so that it is neither trained nor saved, nor changed in its mode. The images
    are those that the student sees, after augmentation and mixing (DeiT, section 4), brought to the
    teacher's normalization and to the size that it was trained with.

    Args:
        model: the teacher
        config: of the student
        wanted: what is asked of it
    """

    def __init__(self, model: Model, config: ModelConfig, wanted: Wanted) -> None:
        self.model = model.eval().requires_grad_(False)
        self.config, self.wanted = config, wanted
        self.columns = columns_of(config, model.config)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def answers(self, batch: Batch) -> Tensor:
        """Return what the teacher says of a batch.

        Args:
            batch: the student's normalized images, (B, C, H, W)

        Returns:
            hard: the class of the highest score, int64 (B,), or of several labels which classes
            an image has, float32 (B, classes); soft: scores, float32 (B, classes), in the order of
            the student's classes.
        """
        assert isinstance(batch.images, Tensor)
        return self.asked(self.images(batch.images.float()))

    def images(self, images: Tensor) -> Tensor:
        """Return a student's images, float32 (B, C, H, W), as the teacher takes them."""
        own, theirs = self.config, self.model.config
        if theirs.size != own.size:
            images = F.interpolate(images, theirs.size, mode=theirs.interpolation, antialias=True)
        if (own.mean, own.std) == (theirs.mean, theirs.std):
            return images
        each = [*zip(own.mean, own.std, theirs.mean, theirs.std, strict=True)]
        scale = images.new_tensor([std / other for _, std, _, other in each])
        shift = images.new_tensor([(mean - middle) / other for mean, _, middle, other in each])
        return images * scale[:, None, None] + shift[:, None, None]

    def asked(self, images: Tensor) -> Tensor:
        """Return what the teacher itself says of images as it takes them, as `answers` does."""
        found: Tensor = self.model(images)
        chosen = slice(None) if self.columns is None else self.columns
        scores = (found.float() / self.model.temperature)[:, chosen]
        if self.wanted == "soft":
            return scores
        if not kind_of(self.model.provenance).several:
            return scores.argmax(-1)
        least = scores.new_tensor(self.model.thresholds)[chosen]
        return (scores.sigmoid() > least).float()


def columns_of(config: ModelConfig, theirs: ModelConfig) -> list[int] | None:
    """Return which of a teacher's outputs is which class of the student; None for all in order.

    Classes are matched by name. A model that does not name its classes has them in the order of
    the data's, if there are as many.

    Raises:
        OptionError: the teacher does not know a class.
    """
    if not theirs.labels or not config.labels:
        if theirs.classes != config.classes:
            raise OptionError(
                f"the teacher has {theirs.classes} classes without names, but the data have "
                f"{config.classes}: choose a teacher of these classes"
            )
        return None
    unknown = [name for name in config.labels if name not in theirs.labels]
    if unknown:
        others = f" and {len(unknown) - 1} others" if len(unknown) > 1 else ""
        raise OptionError(
            f"the teacher does not know class {unknown[0]!r}{others}: fine-tune it on these "
            "classes first"
        )
    columns = [theirs.labels.index(name) for name in config.labels]
    return None if columns == list(range(theirs.classes)) else columns


def check_teacher(
    options: Distill, config: ModelConfig, guide: Model, several: bool = False
) -> None:
    """Refuse a teacher that a student cannot learn from this way, before anything is built.

    Args:
        options: of the recipe
        config: of the student
        guide: the teacher
        several: the images have several labels each

    Raises:
        OptionError: the message says what would work.
    """
    theirs = guide.config
    if not isinstance(theirs, ViTConfig | ResNetConfig):
        raise OptionError(
            f"{options.teacher} is a {theirs.kind}, not a teacher: name a Vision Transformer or a "
            "ResNet"
        )
    if theirs.channels != config.channels:
        raise OptionError(
            f"the teacher takes images of {theirs.channels} channels, not {config.channels}: "
            "choose another teacher"
        )
    if config.fit == "native":
        raise OptionError("a teacher needs images of one size: set fit=crop")
    if not theirs.classes:
        raise OptionError("the teacher has no classifier: fine-tune it on these classes first")
    if theirs.answers > 1:
        raise OptionError(
            f"the teacher gives {theirs.answers} outputs per image: choose another one"
        )
    columns_of(config, theirs)
    if several != kind_of(guide.provenance).several:
        kinds = ("one label", "several labels")
        raise OptionError(
            f"the teacher was trained on images with {kinds[not several]} each, and these have "
            f"{kinds[several]}: choose another one"
        )


def remarks_of(config: ModelConfig, guide: Model) -> list[str]:
    """Return what the user should know of a teacher, for screen and report."""
    theirs, found = guide.config, []
    if not theirs.labels:
        found.append("the teacher does not name its classes: they are taken in the data's order")
    if theirs.size != config.size:
        rows, columns = theirs.size
        found.append(f"the teacher sees each crop at its own {rows}x{columns} pixels")
    return found


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
        super().__init__(config)
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

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the mean loss of a batch, its correct answers and those that are the teacher's."""
        answers = self.teacher.answers(batch)
        if self.heads is None:
            scores = own = taught = model(batch.images).float()
        else:
            assert isinstance(batch.images, Tensor)
            own, taught = (each.float() for each in self.heads(model, batch.images))
            scores = (own + taught) / 2
        share = self.distill.distill_weight
        lesson = self.taught.mean if self.distill.distill == "hard" else self._soft
        mean = (1 - share) * self.classify.mean(own, batch.labels) + share * lesson(taught, answers)
        figures = {
            "correct": self.classify.correct(scores, batch.labels),
            "agreed": self.classify.correct(scores, answers),
        }
        return mean, figures

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
