"""The gradients of class scores, with a model left as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.labels import kind_of
from vitlab.errors import OptionError
from vitlab.inspect.passes import entering
from vitlab.models.layers import evaluating
from vitlab.models.model import Model

Seen = list[tuple[Any, ...]]  # arguments, or the one output, of each call


def asked(model: Model, images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return images and the class of each, as the model takes them.

    Args:
        model: any
        images: normalized, (B, channels, H, W)
        classes: of each image, (B,)

    Raises:
        OptionError: images that do not fit, no classifier, or no such class.
    """
    images = entering(model, images)
    check_classes(model, images, classes)
    return images, classes.to(images.device)


def check_classes(model: Model, images: Tensor, classes: Tensor) -> None:
    """Refuse a model without a classifier, and anything but a class for each image.

    Raises:
        OptionError: the message says what would work.
    """
    config = model.config
    if not config.classes:
        raise OptionError(f"{config.name} has no classifier, and so no class to explain")
    if not isinstance(classes, Tensor):
        raise OptionError(f"classes must be an int64 tensor, not {type(classes).__name__}")
    if classes.shape != (len(images),) or classes.dtype != torch.int64:
        raise OptionError(f"classes must be int64, one per image: ({len(images)},)")
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < config.classes:
        raise OptionError(f"classes must be from 0 to {config.classes - 1}")


def scores_of(values: Tensor, classes: Tensor) -> Tensor:
    """Return each image's value of its class: (B, classes) -> (B,).

    Of (B, queries, classes) it is the mean over the queries of attention pooling.
    """
    each = values.reshape(len(values), -1, values.shape[-1]).mean(1)
    return each.gather(-1, classes[:, None])[:, 0]


def log_chances(model: Model, images: Tensor) -> Tensor:
    """Return the log-probability of every class, float32 (B, classes).

    Where an image may have several classes, each has its own probability.
    """
    logits = model(images).float() / model.temperature
    return F.logsigmoid(logits) if kind_of(model).several else logits.log_softmax(-1)


@contextmanager
def scored(model: Model, images: Tensor, classes: Tensor) -> Iterator[Callable[[], None]]:
    """Give a function that runs the model and the gradients of each image's class score.

    Within the block the model is in evaluation mode and none of its weights collects gradients;
    afterwards each is as it was.

    Args:
        model: any with a classifier
        images: as from `asked`, (B, channels, H, W)
        classes: of each image, (B,)
    """
    free = [weight for weight in model.parameters() if weight.requires_grad]

    def run() -> None:
        with torch.inference_mode(False), torch.enable_grad():
            logits = model(images.detach().clone().requires_grad_())
            scores_of(logits, classes.clone()).sum().backward()

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
