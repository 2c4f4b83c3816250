"""What a pretext task is: a loss without labels, and what it trains beside the model."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitlab.data.loading.batches import Batch
from vitlab.data.loading.multi_crop import View
from vitlab.data.settings import Augment
from vitlab.models.config import ModelConfig
from vitlab.models.model import Model
from vitlab.recipes.pretext import Pretext

Sum = Callable[[Tensor], None]
"""Adds up a tensor over all processes, in place."""


class PretextTask(nn.Module):
    """A loss without labels, with the modules that it trains beside the model.

    Its parameters and buffers are in every checkpoint, and not in the saved model. A parameter that
    takes no gradient (a momentum teacher's) has `requires_grad` off. A subclass builds its modules
    in `__init__`, draws them in `reset_parameters`, and overrides what differs for it.

    Args:
        options: of the recipe
        config: of the model
        guide: a frozen model whose answers are the targets (BEiT's tokenizer), on the device; it is
            no submodule, so that it is neither trained nor kept in checkpoints

    Attributes:
        options: of the recipe
        config: of the model
        figures: names of what `loss` adds up beside the loss, in the journal's order
        guided: whether the task needs a guide
    """

    figures: ClassVar[tuple[str, ...]] = ()
    guided: ClassVar[bool] = False

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        super().__init__()
        self.options, self.config = options, config
        self._guide = (guide,)  # a tuple hides it from torch

    @property
    def guide(self) -> Model:
        """The frozen model whose answers are the targets."""
        assert self._guide[0] is not None
        return self._guide[0]

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

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight of the task's own modules."""

    def start(self, model: Model) -> None:
        """Take over what the task needs of the model's first weights, before the first step."""

    def loss(
        self, model: Model, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss of a batch, and the sum over its images of each of `figures`.

        Args:
            model: what is trained, in training mode while it learns
            batch: normalized images (B, channels, H, W), augmented; labels are not to be looked at
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
        called instead where the step was passed over.

        Args:
            model: with its new weights
            add: adds up a tensor over all processes
        """

    def drop(self) -> None:
        """Forget what a loss has collected for a step that is not taken."""

    def kept(self, model: Model) -> Model:
        """Return the weights to evaluate and to save: the model's, or a momentum teacher's."""
        return model

    def warnings(self, means: dict[str, float]) -> list[str]:
        """Return what the user must be told, given the means of loss and figures; one line each."""
        return []

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


class Learner(nn.Module):
    """A model with a pretext task, as the one module that computes a loss.

    Several processes average the gradients of one module, in whose forward pass they are found.
    """

    def __init__(self, model: Model, task: PretextTask) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the task's mean loss of a batch, and its figures."""
        return self.task.loss(self.model, batch, generator)
