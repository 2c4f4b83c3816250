"""Pretext tasks: losses without labels, with modules of their own that learn beside the model."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitlab.data.loading.batch import Batch
from vitlab.data.loading.views import View
from vitlab.data.settings import Augment
from vitlab.data.target import Target
from vitlab.images import ImageSpec
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.model import Model
from vitlab.on_device import sent
from vitlab.recipes.pretext import Pretext

LossFigures = tuple[Tensor, dict[str, Tensor]]
"""The mean loss of a batch, and the sum over its images of each figure beside it."""

Sum = Callable[[Tensor], None]
"""Adds up a tensor over all processes, in place."""


class OwningObjective(nn.Module):
    """A loss with the modules that it trains beside the model: a decoder, a projector, a teacher.

    Its parameters and buffers are in every checkpoint, and not in the saved model. A parameter that
    takes no gradient (a momentum teacher's) has `requires_grad` off. A subclass builds its modules
    in `__init__`, draws them in `reset_parameters`, and overrides what differs for it.

    Args:
        config: of the model

    Attributes:
        config: of the model
        figures: names of what `loss` adds up beside the loss, in the journal's order
    """

    figures: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def follows(self) -> bool:
        """Whether `stepped` does anything, so that the host must know which steps were taken."""
        return type(self).stepped is not OwningObjective.stepped

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight of the objective's own modules."""

    def start(self, model: Model) -> None:
        """Take over what is needed of the model's first weights, before the first step."""

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the mean loss of a batch, and the sum over its images of each of `figures`.

        Args:
            model: what is trained, in training mode while it learns
            batch: normalized images (B, channels, H, W), augmented
            generator: the only source of random numbers, on the model's device
        """
        raise NotImplementedError

    def begin(self, step: int, total: int, epoch: float) -> None:
        """Prepare for a step: temperatures and momentums follow their schedules.

        Args:
            step: its number, from 0
            total: steps of the run
            epoch: steps per epoch, a fraction
        """

    def stepped(self, model: Model, add: Sum) -> None:
        """Follow a step that was taken: momentum teachers and centers move.

        What a loss has collected for this (over all passes of the step) is used up here; `drop` is
        called instead if the step was skipped.

        Args:
            model: with its new weights
            add: adds up a tensor over all processes
        """

    def drop(self) -> None:
        """Forget what a loss has collected for a step that is not taken."""

    def kept(self, model: Model) -> Model:
        """Return the weights to evaluate and to save: the model's, or a momentum teacher's."""
        return model

    def answering(self, model: Model, labels: Target) -> Any:
        """Return the model with what finds something in images, if the objective is one for that.

        Args:
            model: the weights to evaluate and to save
            labels: of the training images
        """
        return None

    def warnings(self, means: dict[str, float]) -> list[str]:
        """Return what the user must be told, given the means of loss and figures; one line each."""
        return []


class Learner(nn.Module):
    """A model and what learns beside it, as the one module that computes a loss.

    Several processes average the gradients of one module, in whose forward pass they are found.
    """

    def __init__(self, model: Model, task: OwningObjective) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the objective's mean loss of a batch, and its figures."""
        return self.task.loss(self.model, batch, generator)


GRAY = 0.5  # of what is hidden in a picture


def unit_pixels(images: Tensor, spec: ImageSpec) -> Tensor:
    """Undo the normalization of images: (B, channels, H, W) -> float32 (B, channels, H, W)."""
    mean, std = (
        sent(torch.tensor(each), images.device)[:, None, None] for each in (spec.mean, spec.std)
    )
    return images.float() * std + mean


def as_pictures(pixels: Tensor) -> Tensor:
    """Return pixels in [0, 1], (B, channels, H, W), as RGB pictures, uint8 (B, H, W, 3).

    Values outside are cut off. Gray becomes RGB; of four channels and more the first three count.
    """
    shown = pixels.expand(-1, 3, -1, -1) if pixels.shape[1] == 1 else pixels[:, :3]
    if shown.shape[1] == 2:  # two channels have no colors
        shown = pixels.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    return (shown.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)


class PretextTask(OwningObjective):
    """A loss without labels: its `loss` does not look at those of a batch.

    Args:
        options: of the recipe
        config: of the model
        guide: BEiT's tokenizer, frozen and on the device

    Attributes:
        options: of the recipe
    """

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        super().__init__(config)
        self.options = options
        self._guide = (guide,)  # a tuple hides it from torch: it is not trained, nor in checkpoints

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse a model or a guide that the task has no meaning for, before anything is built.

        Raises:
            OptionError: the message says what would work.
        """

    @classmethod
    def remarks(cls, options: Pretext, config: ModelConfig) -> list[str]:
        """Return what the user should know of the task with this model, for screen and report."""
        return []

    @classmethod
    def views(cls, options: Pretext, config: ModelConfig, augment: Augment) -> tuple[View, ...]:
        """Return the crops of each image that a batch has, the first of which are its images.

        Args:
            options: of the recipe
            config: of the model
            augment: of the recipe

        Returns:
            An empty tuple for the one crop that `augment` asks for.
        """
        return ()

    def pictures(
        self, model: Model, images: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return what the report shows of a few images, in columns: uint8 (B, H, W, 3) each.

        Such as the image, what of it is masked, and what is made of that.

        Args:
            model: in evaluation mode
            images: normalized, (B, channels, H, W)
            generator: of the masks
        """
        return {}
