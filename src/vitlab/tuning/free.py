"""Trainable parameters of each way of fine-tuning, and what the others leave undone."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitlab.errors import OptionError
from vitlab.models.model import Model
from vitlab.recipes.start import Start, Tune
from vitlab.tuning import lora

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _BatchNorm)


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
        for name in free_names(model, "lora"):
            model.get_parameter(name).requires_grad_()
    else:
        freeze(model, start.tune, start.last_blocks)
    train_mode(model)


def free_names(model: Model, tune: Tune, last: int = Start.last_blocks) -> set[str]:
    """Return the names of the parameters that are trained; the classifier is always among them.

    `attention` is that of Three things, section 4, as its code has it: queries, keys, values and
    projection of every block, with their biases and norms, and the positions. `ffn` is the same
    for the MLPs. Norms before them, LayerScale, stem, class token and registers stay as they are.
    `last` takes so many of the last blocks and what follows them, `norms` the scale and shift of
    every norm. `lora` leaves all but the classifier; its own matrices come with it (`tuning.lora`).

    Raises:
        OptionError: the model has no such parameters.
    """
    names = {name for name, _ in model.named_parameters()}
    if tune == "all":
        return names
    chosen = {name for name in names if name.startswith(model.head_names[0])}
    match tune:
        case "attention" | "ffn":
            roles: dict[str, str] = {}  # of the innermost part with one, outside the stem
            for place, module in model.named_modules():  # the outer ones first
                if (role := getattr(module, "role", None)) and not place.startswith("stem."):
                    roles |= {f"{place}.{name}": role for name, _ in module.named_parameters()}
            own = {name for name, role in roles.items() if role == tune}
            chosen |= {name for name in names if name.startswith("positions.")}
        case "last":
            own = {name for name in names if model.layer_of(name) >= max(1, model.layers - last)}
        case "norms":
            own = {
                f"{place}.{name}"
                for place, module in model.named_modules()
                if isinstance(module, NORMS)
                for name, _ in module.named_parameters(recurse=False)
            }
        case _:
            return chosen
    if not own:
        raise OptionError(f"{model.config.name} has no {tune} to train: set tune=all or tune=head")
    return chosen | own


def freeze(model: Model, tune: Tune, last: int = Start.last_blocks) -> None:
    """Let only the parameters of `free_names` take gradients.

    Raises:
        OptionError: the model has no such parameters.
    """
    free = free_names(model, tune, last)
    for name, weight in model.named_parameters():
        weight.requires_grad_(name in free)


def train_mode(model: nn.Module) -> None:
    """Put a model into training mode, but for the parts in which nothing is learned.

    Those are in evaluation mode: batch norms with frozen weights, whose statistics stay, and
    everything below the lowest trained parameter, where neither dropout nor stochastic depth
    would have a gradient to act on.
    """
    model.train()
    if not isinstance(model, Model):  # but has one, and what learns beside it
        for part in model.children():
            if isinstance(part, Model):
                train_mode(part)
        return
    free = [name for name, weight in model.named_parameters() if weight.requires_grad]
    lowest = min(map(model.layer_of, free), default=0)
    for name, module in model.named_modules():
        frozen = not any(weight.requires_grad for weight in module.parameters())
        if frozen and (isinstance(module, _BatchNorm) or model.layer_of(name) < lowest):
            module.eval()
