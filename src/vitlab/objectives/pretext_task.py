"""The pretext task: a loss without labels, and what it trains beside the model."""

import torch
from torch import Tensor

from vitlab.data.loading.crops import View
from vitlab.data.settings import Augment
from vitlab.models.config import ModelConfig
from vitlab.models.model import Model
from vitlab.objectives.objective_module import OwningObjective
from vitlab.recipes.pretext import Pretext


class PretextTask(OwningObjective):
    """A loss without labels: its `loss` does not look at those of a batch.

    Args:
        options: of the recipe
        config: of the model
        guide: BEiT's tokenizer

    Attributes:
        options: of the recipe
    """

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        super().__init__(config, guide)
        self.options = options

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
