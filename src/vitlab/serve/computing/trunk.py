"""One set of weights on the device, and the models that differ from it in a few tensors."""

import logging
import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from vitlab.device import autocast
from vitlab.errors import OptionError, WeightsError
from vitlab.graphs.int8_form import int8_form
from vitlab.inspect.rollout import late_attention
from vitlab.models.cost import cost
from vitlab.models.fast.accelerate import accelerate, can_accelerate
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.models.vit import VisionTransformer
from vitlab.precision import Engine, ServePrecision, fixed
from vitlab.transfer.multitask import MultiTask
from vitlab.weights.deltas import Delta
from vitlab.weights.identity import Base

BASE = ""  # the name of the base itself among its tasks
MOST_ATTENTION = 2**29  # bytes of one image's attention maps
BATCH = 8  # images that engines are timed with
WORTH = 1e9  # multiply-adds of an image from which a fast form is worth its memory


class Trunk:
    """A base and its deltas; images of any of them are computed together.

    Attributes:
        base: on the device
        fast: what computes images of the base alone: its fast form, or the base
        coming: images that are being decoded for any of its models
        pace: seconds that an image takes under load; 0 until it is known
        bytes: of the base

    Args:
        base: taken over, moved to the device and put into evaluation mode
        device: that computes
        precision: auto, fp32, bf16 or int8
        engine: that computes images of the base alone
    """

    def __init__(
        self,
        base: Model,
        device: torch.device,
        precision: ServePrecision = "fp32",
        engine: Engine = "auto",
    ) -> None:
        self.base, self.device = base.to(device).eval().requires_grad_(False), device
        self.fast = fast_beside(self.base, device, precision, engine)
        self._precision = fixed(precision)
        self.bytes = sum(tensor.nbytes for tensor in base.state_dict().values())
        self.coming, self.pace = 0, 0.0
        self._tasks: MultiTask | None = None

    @property
    def precision(self) -> str:
        """What images of the base alone are computed in: fp32, bf16 or int8."""
        return self._precision if self.fast is self.base else self.fast.computes

    @cached_property
    def identity(self) -> Base:
        """Which model the base is."""
        return Base.of(self.base)

    def is_base(self, wanted: Base) -> bool:
        """Return whether this is the model that a delta was made from."""
        config = self.base.config
        if (config.name, config.classes) != (wanted.name, wanted.classes):
            return False  # without the sum over all weights
        try:
            return self.identity.fingerprint == wanted.fingerprint
        except WeightsError:  # it is fused
            return False

    def add(self, task: str, change: Delta) -> None:
        """Add a delta.

        Raises:
            WeightsError: it is another base's, or damaged.
        """
        if self._tasks is None:
            tasks = MultiTask(self.base)
            tasks.add(BASE, Delta(self.base.config, {}, self.identity, {}))
            self._tasks = tasks
        self._tasks.add(task, change)

    def remove(self, task: str) -> None:
        """Free what a delta alone used."""
        if self._tasks is not None and task != BASE:
            self._tasks.remove(task)

    def scored(
        self, images: Tensor | Packed | list[Tensor], tasks: Sequence[str]
    ) -> list[tuple[Tensor, Tensor]]:
        """Compute the features and the logits of normalized images, one task each.

        Returns:
            (features,) and (classes,) for each image.
        """
        if self._tasks is not None and any(tasks):
            assert not isinstance(images, Packed)  # which have a trunk of their own
            with autocast(self.device, self._precision):
                return self._tasks.scored(images, tasks)
        precision = self._precision if self.fast is self.base else "fp32"  # it casts by itself
        with autocast(self.device, precision):
            whole = torch.stack(images) if isinstance(images, list) else images
            features = self.fast.features(whole)
            return list(zip(features, self.fast.scores(features), strict=True))

    def attention(self, image: Tensor, task: str) -> Tensor:
        """Compute where the last layers look in a normalized image (C, H, W): (rows, columns)."""
        body = self.base if self._tasks is None or task == BASE else self._tasks.body(task)
        with autocast(self.device, self._precision):
            return late_attention(body, image[None])[0]


def fast_beside(
    base: Model, device: torch.device, precision: ServePrecision, engine: Engine = "auto"
) -> Model:
    """Return the fast form of a model, to be kept beside it; the model if there is little to gain.

    It holds the weights once more. `auto` compares fp32 and bf16 on random patterns, as
    `vitlab.accelerate` does: a service has seen no images when it begins.
    """
    if precision == "int8":
        if device.type != "cpu":
            raise OptionError("precision=int8 is for the CPU: choose --device cpu")
        return int8_form(base, engine)
    little = engine == "auto" and cost(base).macs < WORTH
    if engine == "plain" or little or not can_accelerate(base):
        return base
    fast = accelerate(base, device=str(device), precision=precision, engine=engine, batch=BATCH)
    if fast.engine == "plain":
        return base
    logging.getLogger("vitlab").info(
        "%s is computed by %s in %s", base.config.name, fast.engine, fast.computes
    )
    return fast


def has_attention(model: Model) -> bool:
    """Whether `inspect.late_attention` can say where a model looked, in bounded memory."""
    config = model.config
    if not isinstance(model, VisionTransformer) or config.fit == "native":
        return False
    tokens = math.prod(config.grid) + model.config.prefix
    maps = model.config.heads * model.config.branches * model.config.depth
    return 4 * tokens**2 * maps <= MOST_ATTENTION
