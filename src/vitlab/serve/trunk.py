"""Trunks: weights on the device that several models share, and the forms that compute with them."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitlab.device import autocast
from vitlab.errors import OptionError, WeightsError
from vitlab.inspect.attention import late_attention
from vitlab.models.cost import cost
from vitlab.models.fast.accelerate import (
    PROBES,
    Clock,
    accelerate,
    can_accelerate,
    first_form_that_agrees,
    ranking,
    remembered,
)
from vitlab.models.fast.engines import patterns
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.precision import Engine, Precision, ServePrecision, fixed
from vitlab.serve.heads import Head
from vitlab.transfer.multitask import MultiTask
from vitlab.weights.delta_base import DeltaBase
from vitlab.weights.deltas import Delta
from vitlab.weights.identity import base_of

MakeInt8 = Callable[[Model, Engine], Model]
BASE = ""  # the name of the base itself among its tasks
BATCH = 8  # images that engines are timed with
WORTH = 1e9  # multiply-adds of an image from which a fast form is worth its memory


@dataclass(eq=False)
class Form:
    """A network in one engine and precision; images for the same form are computed together.

    Attributes:
        network: that computes
        precision: that it computes in: fp32, bf16 or int8
        pace: seconds that an image takes under load; 0 until it is known
    """

    network: Model
    precision: str
    pace: float = 0.0


class Trunk:
    """A base and its deltas.

    Attributes:
        base: on the device
        head: what answers with masks, boxes or numbers; None of other models
        plain: the form that computes the base as it is, and all deltas
        left: tasks that no request holds any more; any thread may add to them

    Args:
        base: taken over, moved to the device and put into evaluation mode
        device: that computes
        precision: auto, fp32, bf16 or int8
        head: around the base, or None
    """

    def __init__(
        self,
        base: Model,
        device: torch.device,
        precision: ServePrecision = "fp32",
        head: Head | None = None,
    ) -> None:
        self.base = base.to(device).eval().requires_grad_(False)
        self.device = device
        self.head = head
        if isinstance(head, torch.nn.Module):
            head.to(device).requires_grad_(False)
        self.plain = Form(self.base, fixed(precision))
        self.left = deque[str]()

    @cached_property
    def identity(self) -> DeltaBase:
        """Which model the base is."""
        return base_of(self.base)

    def is_base(self, wanted: DeltaBase) -> bool:
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
        self._tasks.add(task, change)

    @cached_property
    def _tasks(self) -> MultiTask:
        """The base and its deltas; made for the first delta, since it takes memory."""
        tasks = MultiTask(self.base)
        own = Delta(self.base.config, {}, self.identity, {}, unlike=self.base.unlike)
        tasks.add(BASE, own)
        return tasks

    def scored(
        self, images: Tensor | Packed | list[Tensor], tasks: Sequence[str], form: Form | None = None
    ) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Compute the features and the logits of normalized images, one task each.

        Args:
            images: a batch; a list of them where there are several tasks
            tasks: BASE, or the plain form's names of deltas
            form: that computes; the plain one by default

        Returns:
            (features,), (classes,) and what `Unlike.distances` takes, (inner,), for each image.
        """
        with suppress(IndexError):
            while True:  # free what deltas alone used that have left
                left = self.left.popleft()
                self._tasks.remove(left)
        form = form or self.plain
        if any(tasks):
            assert form is self.plain
            assert not isinstance(images, Packed)  # which have a trunk of their own
            with autocast(self.device, form.precision):
                return self._tasks.judge(images, tasks)
        precision = form.precision if form is self.plain else "fp32"  # others cast by themselves
        with autocast(self.device, precision):
            whole = torch.stack(images) if isinstance(images, list) else images
            features, inner = form.network.judge(whole)
            looked = [None] * len(features) if inner is None else inner
            return list(zip(features, form.network.scores(features), looked, strict=True))

    def attention(self, image: Tensor, task: str) -> Tensor:
        """Compute where the last layers look in a normalized image (C, H, W): (rows, columns)."""
        body = self._tasks.body(task) if task else self.base
        with autocast(self.device, self.plain.precision):
            return late_attention(body, image[None])[0]


def choose_form(
    trunk: Trunk,
    precision: ServePrecision,
    engine: Engine = "auto",
    int8_form: MakeInt8 | None = None,
) -> Form | None:
    """Return the form that computes a base, without measuring; None where only that would tell.

    Any but the plain one holds the weights once more.

    Args:
        trunk: with the base
        precision: auto, fp32, bf16 or int8. `auto` compares fp32 and bf16 on random patterns, as
            `vitlab.accelerate` does: a service has seen no images when it begins
        engine: auto, or one by its name
        int8_form: makes the form for `int8`

    Raises:
        OptionError: what is asked for cannot be.
    """
    base = trunk.base
    device = trunk.device
    if precision == "int8":
        if device.type != "cpu":
            raise OptionError("precision=int8 is for the CPU: choose --device cpu")
        if int8_form is None:
            raise OptionError("precision=int8 is for vitlab serve: choose auto, fp32 or bf16")
        return _form_of(trunk, int8_form(base, engine))
    little = engine == "auto" and cost(base).macs < WORTH
    if engine == "plain" or little or not can_accelerate(base):
        return trunk.plain
    if engine == "auto" and not remembered(base, device, precision, BATCH):
        return None
    fast = accelerate(base, device=str(device), precision=precision, engine=engine, batch=BATCH)
    return _form_of(trunk, fast)


def fastest_form(trunk: Trunk, precision: Precision, clock: Clock) -> Form:
    """Return the fastest form of a base, which is measured now, and kept for the next start.

    Args:
        trunk: with the base
        precision: auto, fp32 or bf16
        clock: that times a pass: requests may be computed meanwhile
    """
    base = trunk.base
    device = trunk.device
    order = ranking(base, device, precision, BATCH, clock)
    shown = patterns(base, PROBES).to(device)
    return _form_of(trunk, first_form_that_agrees(base, device, order, precision, shown))


def _form_of(trunk: Trunk, network: Model) -> Form:
    """Return the form with a network; the plain one if there is nothing to gain."""
    return trunk.plain if network.engine == "plain" else Form(network, network.computes)
