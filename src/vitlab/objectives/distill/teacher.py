"""A teacher: a trained model that answers for the very images that a student learns from."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.labels import kind_of
from vitlab.data.loading.batches import Batch
from vitlab.device import sent
from vitlab.errors import OptionError
from vitlab.images import ImageSpec
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.models.model import Model
from vitlab.recipes.distilling import Distill

MOST_KEPT = 2**30  # bytes of answers that are kept in memory

Wanted = Literal["hard", "soft", "features"]


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


class Kept:
    """Answers by the number of their image, in memory, for images that never change.

    A batch is answered from here if all of its images are known, and as a whole by the teacher
    otherwise, so that the teacher always sees batches of one size.

    Args:
        images: how many there are
    """

    def __init__(self, images: int) -> None:
        self.known = torch.zeros(images, dtype=torch.bool)
        self.answers: Tensor | None = None

    def get(self, indices: Tensor) -> Tensor | None:
        """Return the answers for images, int64 (B,), on the host; None if one is not known."""
        if self.answers is None or not self.known[indices].all():
            return None
        return self.answers[indices]

    def put(self, indices: Tensor, answers: Tensor) -> None:
        """Keep the answers (B, …) for images, int64 (B,), if all of them fit into memory."""
        if answers[:1].nbytes * len(self.known) > MOST_KEPT:
            return
        if self.answers is None:
            self.answers = answers.new_empty(len(self.known), *answers.shape[1:], device="cpu")
        self.answers[indices], self.known[indices] = answers.cpu(), True


class Teacher:
    """A frozen model that sees a student's images as it takes them, in the student's precision.

    It is no module, so that it is neither trained nor saved, nor changed in its mode. The images
    are those that the student sees, after augmentation and mixing (DeiT, section 4), brought to the
    teacher's normalization and to the size that it was trained with.

    Args:
        model: the teacher
        config: of the student
        wanted: what is asked of it
        kept: how many images there are whose answers are worth keeping (0: they change, so none)
    """

    def __init__(self, model: Model, config: ModelConfig, wanted: Wanted, kept: int = 0) -> None:
        self.model = model.eval().requires_grad_(False)
        self.wanted = wanted
        self.normalized = Normalization.between(config, model.config)
        self.resized = None if model.config.size == config.size else model.config.size
        self.columns = None if wanted == "features" else columns_of(config, model.config)
        self.kept = Kept(kept) if kept else None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def answers(self, batch: Batch, learning: bool) -> Tensor:
        """Return what the teacher says of a batch.

        Args:
            batch: the student's normalized images, (B, C, H, W)
            learning: these are training images, by whose numbers answers may be kept

        Returns:
            hard: the class of the highest score, int64 (B,), or of several labels which classes
            an image has, float32 (B, classes); soft: scores, float32 (B, classes), in the order of
            the student's classes; features: tokens, float32 (B, prefix + patches, D).
        """
        kept = self.kept if learning else None
        found = None if kept is None else kept.get(batch.indices)
        if found is not None:
            return sent(found, batch.labels.device)
        assert isinstance(batch.images, Tensor)
        answers = self.asked(self.images(batch.images.float()))
        if kept is not None:
            kept.put(batch.indices, answers)
        return answers

    def forget(self) -> None:
        """Forget the answers that are kept."""
        if self.kept is not None:
            self.kept = Kept(len(self.kept.known))

    def images(self, images: Tensor) -> Tensor:
        """Return a student's images, float32 (B, C, H, W), as the teacher takes them."""
        if self.resized is not None:
            how = self.model.config.interpolation
            images = F.interpolate(images, self.resized, mode=how, antialias=True)
        return images if self.normalized is None else self.normalized(images)

    def asked(self, images: Tensor) -> Tensor:
        """Return what the teacher itself says of images as it takes them, as `answers` does."""
        if self.wanted == "features":
            return self.model.encode(images).float()
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
                f"{config.classes}: choose a teacher of these classes, or distill=features"
            )
        return None
    unknown = [name for name in config.labels if name not in theirs.labels]
    if unknown:
        others = f" and {len(unknown) - 1} others" if len(unknown) > 1 else ""
        raise OptionError(
            f"the teacher does not know class {unknown[0]!r}{others}: fine-tune it on these "
            "classes first, or set distill=features"
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
    if options.distill == "features":
        return
    if not theirs.classes:
        raise OptionError(
            "the teacher has no classifier: set distill=features, or fine-tune it on these classes "
            "first"
        )
    if theirs.answers > 1:
        raise OptionError(
            f"the teacher gives {theirs.answers} outputs per image: set distill=features"
        )
    columns_of(config, theirs)
    if several != kind_of(guide).several:
        kinds = ("one label", "several labels")
        raise OptionError(
            f"the teacher was trained on images with {kinds[not several]} each, and these have "
            f"{kinds[several]}: set distill=features"
        )


def remarks_of(config: ModelConfig, guide: Model, options: Distill) -> list[str]:
    """Return what the user should know of a teacher, for screen and report."""
    theirs, found = guide.config, []
    if options.distill != "features" and not theirs.labels:
        found.append("the teacher does not name its classes: they are taken in the data's order")
    if theirs.size != config.size:
        rows, columns = theirs.size
        found.append(f"the teacher sees each crop at its own {rows}x{columns} pixels")
    return found
