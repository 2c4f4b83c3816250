"""The mean cross-entropy of labeled images as a function of a model's weights."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitlab.data.labels import kind_of
from vitlab.device import exact, with_float64
from vitlab.errors import OptionError
from vitlab.inspect.explaining.class_scores import asked
from vitlab.models.model import Model

TYPES = {"fp32": torch.float32, "fp64": torch.float64}
PIXELS = 2**15  # that pass at once: 32 images of 32x32; more are no faster on a CPU


class MeanLoss:
    """The mean cross-entropy of labeled images, and its gradient, in all weights of a model.

    It works on a copy of the model in evaluation mode, so that the model itself stays as it was,
    batch norms use their running statistics, and nothing is dropped. Few images pass at once; their
    losses and gradients are summed. Vectors of weights, (n,), have them in the order of
    `model.parameters()`, frozen ones too.

    Args:
        model: any with a classifier
        images: normalized, (B, channels, H, W)
        labels: the class of each image, int64 (B,)
        label_smoothing: share of the target spread over all classes
        precision: fp32 or fp64, of weights, images and products
        at_once: images that pass together; None for as many as have 32,768 pixels, one at least

    Attributes:
        model: the copy
        weights: its parameters
        count: how many numbers these are, n

    Raises:
        OptionError: images or labels that do not fit, no classifier, several labels per image or
            several queries, an accelerated model, or a setting that cannot be.
    """

    def __init__(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        label_smoothing: float = 0.0,
        precision: Literal["fp32", "fp64"] = "fp32",
        at_once: int | None = None,
    ) -> None:
        if precision not in TYPES:
            raise OptionError(f"precision must be fp32 or fp64, not {precision}")
        if not 0 <= label_smoothing < 1:
            raise OptionError(f"label_smoothing must be from 0 to below 1, not {label_smoothing}")
        with torch.inference_mode(False):  # what is made in inference mode has no gradients
            images, labels = asked(model, images, labels)
            _check_kind(model)
            where = with_float64(images.device) if precision == "fp64" else images.device
            kind = where, TYPES[precision]
            self.images, self.labels = images.to(*kind).clone(), labels.to(where).clone()
            self.model = copy.deepcopy(model).to(*kind).eval().requires_grad_(True)
        self.model.zero_grad()  # the copy's, which has those of the model
        self.smoothing = label_smoothing
        fitting = max(1, PIXELS // (images.shape[2] * images.shape[3]))
        self.at_once = fitting if at_once is None else at_once
        at_least("at_once", self.at_once, 1)
        self.weights: list[Tensor] = list(self.model.parameters())
        self.count = sum(weight.numel() for weight in self.weights)

    def value(self) -> float:
        """Compute the loss, in nats."""
        with torch.inference_mode():
            return sum(float(part) for part in self.parts())

    def gradient(self) -> Tensor:
        """Compute the gradient in all weights, (n,)."""
        self.backward()
        return self.flat([weight.grad for weight in self.weights])

    def backward(self) -> None:
        """Leave the gradient in the weights' `grad`."""
        self.model.zero_grad()
        with differentiable():
            for part in self.parts():
                part.backward()

    def parts(self) -> Iterator[Tensor]:
        """Yield losses of a few images each, float64 scalars, that add up to the mean."""
        for images, labels in zip(
            self.images.split(self.at_once), self.labels.split(self.at_once), strict=True
        ):
            scores = exact(self.model(images))
            truth = labels.to(scores.device)
            total = F.cross_entropy(scores, truth, reduction="sum", label_smoothing=self.smoothing)
            yield total / len(self.images)

    def on(self, rows: Tensor) -> Self:
        """Return the mean loss of some of the images alone, of the same weights.

        Args:
            rows: numbers of the images, int64 (b,)
        """
        some = copy.copy(self)
        with torch.inference_mode(False):
            some.images, some.labels = self.images[rows], self.labels[rows]
        return some

    def drawn(self, count: int, seed: int) -> Self:
        """Return the mean loss of so many images, drawn at random; of all, if there are no more."""
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(seed))
        return self.on(order[:count].to(self.images.device))

    def flat(self, parts: Sequence[Tensor | None]) -> Tensor:
        """Join one tensor for each weight, or None for zeros: (n,)."""
        pairs = zip(parts, self.weights, strict=True)
        return torch.cat(
            [(torch.zeros_like(like) if part is None else part).flatten() for part, like in pairs]
        )

    def draw(self, generator: torch.Generator) -> list[Tensor]:
        """Draw standard normal numbers in the shapes of the weights, the same on every device."""
        return [
            torch.randn(weight.shape, generator=generator, dtype=weight.dtype).to(weight.device)
            for weight in self.weights
        ]

    @contextmanager
    def moved(self, step: Sequence[Tensor]) -> Iterator[None]:
        """Within the context, add a step to the weights; afterwards they have the same bits."""
        before = [weight.detach().clone() for weight in self.weights]
        try:
            with torch.no_grad():
                torch._foreach_add_(self.weights, list(step))
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, before)


@contextmanager
def differentiable() -> Iterator[None]:
    """Within the context, gradients are recorded, and attention can be differentiated twice.

    The kernels that PyTorch fuses can be differentiated once. The products that our models train
    with are those of training mode; a copy in evaluation mode has plain ones.
    """
    with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        yield


def at_least(name: str, value: float, limit: int) -> None:
    """Refuse a number below a limit.

    Raises:
        OptionError: the message names it.
    """
    if value < limit:
        raise OptionError(f"{name} must be at least {limit}, not {value}")


def _check_kind(model: Model) -> None:
    """Refuse models whose loss is another one, or whose weights are out of reach."""
    name = model.config.name
    if kind_of(model).several:
        raise OptionError(f"{name} gives images several labels: cross-entropy needs one per image")
    if getattr(model.config, "queries", 1) > 1:
        raise OptionError(f"{name} scores each query by itself: cross-entropy needs one query")
    if model.engine != "plain":
        raise OptionError(f"{name} is accelerated: use the model that it was made from")
