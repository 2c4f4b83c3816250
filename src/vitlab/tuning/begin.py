"""From a model to one of which the chosen parameters learn."""

import torch

from vitlab.models.model import Model
from vitlab.recipes.choices import Start
from vitlab.tuning import lora
from vitlab.tuning.free import freeze, train_mode


def begin_tuning(model: Model, start: Start, generator: torch.Generator) -> None:
    """Let the chosen parameters learn, and only these; in place.

    Args:
        model: a plain model
        start: says which
        generator: source of LoRA's matrices

    Raises:
        OptionError: the model has no such parameters.
    """
    if start.tune == "lora":
        lora.inject(
            model, generator,
            rank=start.lora_rank, alpha=start.lora_alpha, targets=start.lora_targets,
        )  # fmt: skip
        for name, weight in model.named_parameters():
            if name.startswith(model.head_names[0]):
                weight.requires_grad_()
    else:
        freeze(model, start.tune)
    train_mode(model)
