"""The gradients of class scores, with a model left as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.layers import evaluating
from vitlab.models.model import Model

Seen = list[tuple[Any, ...]]  # arguments, or the one output, of each call


def check_classes(model: Model, images: Tensor, classes: Tensor) -> None:
    """Refuse a model without a classifier, and anything but a class for each image.

    Raises:
        OptionError: the message says what would work.
    """
    config = model.config
    if not config.classes:
        raise OptionError(f"{config.name} has no classifier, and so no class to explain")
    if classes.shape != (len(images),) or classes.dtype != torch.int64:
        raise OptionError(f"classes must be int64, one per image: ({len(images)},)")
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < config.classes:
        raise OptionError(f"classes must be from 0 to {config.classes - 1}")


@contextmanager
def scored(model: Model, images: Tensor, classes: Tensor) -> Iterator[Callable[[], None]]:
    """Give a function that runs the model and the gradients of each image's class score.

    Within the block the model is in evaluation mode and none of its weights collects gradients;
    afterwards each is as it was.

    Args:
        model: any with a classifier
        images: normalized, (B, channels, H, W)
        classes: of each image, (B,)

    Raises:
        OptionError: no classifier, or no such class.
    """
    check_classes(model, images, classes)
    free = [weight for weight in model.parameters() if weight.requires_grad]

    def run() -> None:
        with torch.enable_grad():
            logits = model(images.detach().clone().requires_grad_())
            logits.gather(-1, classes[:, None]).sum().backward()

    with evaluating(model):
        try:
            for weight in free:
                weight.requires_grad_(False)
            yield run
        finally:
            for weight in free:
                weight.requires_grad_(True)


@contextmanager
def watched(module: nn.Module, *, inputs: bool = False, gradient: bool = False) -> Iterator[Seen]:
    """Collect what a module returns within the block, or with `inputs` what it is called with.

    Args:
        module: any part of a model
        inputs: collect the arguments instead
        gradient: keep the first tensor's gradient, `.grad`, too
    """
    seen: Seen = []

    def keep(values: tuple[Any, ...]) -> None:
        if gradient:
            values[0].retain_grad()
        seen.append(values)

    if inputs:
        handle = module.register_forward_pre_hook(lambda _, given: keep(given))
    else:
        handle = module.register_forward_hook(lambda _, given, out: keep((out,)))
    try:
        yield seen
    finally:
        handle.remove()
