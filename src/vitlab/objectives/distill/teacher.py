"""A teacher: a trained model that answers for the very images that a student learns from."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.labels import kind_of
from vitlab.data.loading.batches import Batch
from vitlab.errors import OptionError
from vitlab.images import ImageSpec
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.models.model import Model
from vitlab.recipes.distilling import Distill

Wanted = Literal["hard", "soft"]


class Normalization(NamedTuple):
    """What turns images of one normalization into another's: x * scale + shift, per channel."""

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    @classmethod
    def between(cls, own: ImageSpec, theirs: ImageSpec) -> "Normalization | None":
        """Return that from the student's to the teacher's; None if they are the same."""
        if (own.mean, own.std) == (theirs.mean, theirs.std):
            return None
        each = list(zip(own.mean, own.std, theirs.mean, theirs.std, strict=True))
        scale = tuple(std / other for _, std, _, other in each)
        shift = tuple((mean - middle) / other for mean, _, middle, other in each)
        return cls(scale, shift)

    def __call__(self, images: Tensor) -> Tensor:
        """Change images (B, C, H, W)."""
        scale, shift = (images.new_tensor(each)[:, None, None] for each in self)
        return images * scale + shift


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
        self.wanted = wanted
        self.normalized = Normalization.between(config, model.config)
        self.resized = None if model.config.size == config.size else model.config.size
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
        if self.resized is not None:
            how = self.model.config.interpolation
            images = F.interpolate(images, self.resized, mode=how, antialias=True)
        return images if self.normalized is None else self.normalized(images)

    def asked(self, images: Tensor) -> Tensor:
        """Return what the teacher itself says of images as it takes them, as `answers` does."""
        found: Tensor = self.model(images)
        chosen = slice(None) if self.columns is None else self.columns
        scores = (found.float() / self.model.temperature)[:, chosen]
        if self.wanted == "soft":
            return scores
        if not kind_of(self.model).several:
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
    if several != kind_of(guide).several:
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
