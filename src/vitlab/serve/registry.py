"""Registry of the models that are served: added, replaced and removed while others compute.

A trunk is one set of weights on the device; models that differ from it in a few tensors share it.
"""

import copy
import itertools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from vitlab.data.labels import kind_of
from vitlab.device import autocast
from vitlab.errors import OptionError, WeightsError
from vitlab.graphs.int8_form import int8_form
from vitlab.inspect.attention import late_attention
from vitlab.inspect.look import attention_bytes
from vitlab.models.cost import cost
from vitlab.models.create import build
from vitlab.models.fast.accelerate import accelerate, can_accelerate
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.models.vit import VisionTransformer
from vitlab.options import check_known
from vitlab.precision import Engine, ServePrecision, fixed
from vitlab.serve.decoders import Wanted
from vitlab.serve.heads import Head, Kind, form_of, load_head, told, wanted_by
from vitlab.transfer.multitask import MultiTask
from vitlab.weights.deltas import Delta
from vitlab.weights.identity import DeltaBase
from vitlab.weights.load import load, load_base, load_delta

Source = str | Path | Model | Delta
BASE = ""  # the name of the base itself among its tasks
MOST_ATTENTION = 2**29  # bytes of one image's attention maps
BATCH = 8  # images that engines are timed with
WORTH = 1e9  # multiply-adds of an image from which a fast form is worth its memory


class ServedModel(BaseModel):
    """A model that is served."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str
    """by which requests name it"""
    model: str
    """its architecture, as ViT-B/16"""
    classes: tuple[str, ...] = ()
    image_size: tuple[int, int]
    """rows and columns of its input"""
    features: int
    several: bool
    """whether an image may have several classes"""
    trunk: str
    """of a delta, the fingerprint of the base whose weights it shares"""
    bytes: int
    """of its own weights"""
    added: float
    """seconds since 1970"""
    attention: bool
    """whether it can show where it looked"""
    engine: str = "plain"
    """plain, packed, openvino and so on"""
    precision: str = "fp32"
    """of its computing: fp32 or bf16"""
    answers: Kind = "classes"
    """what /predict gives; a model without a classifier has features alone"""
    targets: tuple[str, ...] = ()
    """of numbers: their names"""
    numbers: tuple[int, ...] = ()
    """of masks: the number of each class"""
    thresholds: Annotated[tuple[float, ...], Field(exclude=True)] = ()


class Trunk:
    """A base and its deltas; images of any of them are computed together.

    Attributes:
        base: on the device
        head: what answers with masks, boxes or numbers; None of other models
        fast: what computes images of the base alone: its fast form, or the base
        pace: seconds that an image takes under load; 0 until it is known
        left: tasks that no request holds any more; any thread may add to them

    Args:
        base: taken over, moved to the device and put into evaluation mode
        device: that computes
        precision: auto, fp32, bf16 or int8
        engine: that computes images of the base alone
        head: around the base, or None
    """

    def __init__(
        self,
        base: Model,
        device: torch.device,
        precision: ServePrecision = "fp32",
        engine: Engine = "auto",
        head: Head | None = None,
    ) -> None:
        self.base, self.device = base.to(device).eval().requires_grad_(False), device
        self.head = head
        if isinstance(head, torch.nn.Module):
            head.to(device).requires_grad_(False)
        self.fast = fast_beside(self.base, device, precision, engine)
        self._precision = fixed(precision)
        self.pace, self.left = 0.0, deque[str]()

    @property
    def precision(self) -> str:
        """What images of the base alone are computed in: fp32 or bf16."""
        return self._precision if self.fast is self.base else self.fast.computes

    @cached_property
    def identity(self) -> DeltaBase:
        """Which model the base is."""
        return DeltaBase.of(self.base)

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
        self, images: Tensor | Packed | list[Tensor], tasks: Sequence[str]
    ) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Compute the features and the logits of normalized images, one task each.

        Returns:
            (features,), (classes,) and what `Unlike.distances` takes, (inner,), for each image.
        """
        with suppress(IndexError):
            while True:  # free what deltas alone used that have left
                left = self.left.popleft()
                self._tasks.remove(left)
        if any(tasks):
            assert not isinstance(images, Packed)  # which have a trunk of their own
            with autocast(self.device, self._precision):
                return self._tasks.judged(images, tasks)
        precision = self._precision if self.fast is self.base else "fp32"  # it casts by itself
        with autocast(self.device, precision):
            whole = torch.stack(images) if isinstance(images, list) else images
            features, inner = self.fast.judged(whole)
            looked = [None] * len(features) if inner is None else inner
            return list(zip(features, self.fast.scores(features), looked, strict=True))

    def attention(self, image: Tensor, task: str) -> Tensor:
        """Compute where the last layers look in a normalized image (C, H, W): (rows, columns)."""
        body = self._tasks.body(task) if task else self.base
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
    return attention_bytes(model, config.size) <= MOST_ATTENTION


@dataclass(eq=False)
class Served:
    """One model, as requests hold it until they are answered.

    Attributes:
        card: what is said about it
        facts: configuration and provenance of the model, without its weights
        trunk: where its weights are
        task: its name there
        wanted: what its images are decoded to
        batch: most images in one pass (0: to be measured)
        held: its images that are accepted and not yet answered
    """

    card: ServedModel
    facts: Model
    trunk: Trunk
    task: str
    wanted: Wanted
    batch: int = 0
    held: int = 0


class Registry:
    """The models that are served, by name, in the order in which they were added.

    Args:
        device: that computes
        ready: called with each model before requests can reach it
        precision: auto, fp32, bf16 or int8
        engine: that computes

    Attributes:
        models: by name; replaced, never changed
    """

    def __init__(
        self,
        device: torch.device,
        ready: Callable[[Served], None],
        precision: ServePrecision = "fp32",
        engine: Engine = "auto",
    ) -> None:
        self.device, self._ready, self._how = device, ready, (precision, engine)
        self.models: dict[str, Served] = {}
        self._changing, self._numbers = threading.Lock(), itertools.count(1)

    def find(self, name: str) -> Served:
        """Return a model by name; the first one for an empty name.

        Raises:
            OptionError: there is none.
        """
        models = self.models
        if not models:
            raise OptionError("no model is served: add one")
        name = name or next(iter(models))
        check_known([name], models, "model")
        return models[name]

    def add(self, name: str, source: Source, *, replace: bool = False) -> None:
        """Load a model in this thread, and serve it.

        A delta shares the weights of its base with the base and all its other deltas. A file of
        one may be added without its base, which is then loaded from where the file says; a `Delta`
        in memory, which may come from anyone, needs a base that is served.

        Args:
            name: new, or that of the model to replace
            source: a run folder, a saved folder, a file or a name on the Hub, as `vitlab.load`
                takes it; a model, which must not be changed afterwards; or a delta
            replace: the model of this name, which answers what it was asked before

        Raises:
            OptionError: the name is empty; taken, or unknown if it should be replaced.
            WeightsError: it cannot be loaded.
        """
        if not name:
            raise OptionError("a model needs a name")
        with self._changing:
            if replace:
                check_known([name], self.models, "model")
            elif name in self.models:
                raise OptionError(f"there is a model {name!r} already: replace or remove it")
            self.models = self.models | {name: self._made(name, source)}

    def remove(self, name: str) -> None:
        """Serve a model no longer, once it has answered what it was asked.

        Raises:
            OptionError: there is no model of this name.
        """
        with self._changing:
            check_known([name], self.models, "model")
            self.models = {key: each for key, each in self.models.items() if key != name}

    def _made(self, name: str, source: Source) -> Served:
        """Load a model and make it ready."""
        if isinstance(source, Model):
            here = next(source.parameters()).device == self.device
            return self._whole(name, source if here else copy.deepcopy(source))
        if isinstance(source, Delta):
            return self._delta(name, source)
        if (change := load_delta(source)) is not None:
            return self._delta(name, change, source)
        head = load_head(source)
        return self._whole(name, head.model if head else load(source), head)

    def _delta(self, name: str, change: Delta, file: str | Path | None = None) -> Served:
        """Serve a delta, on the weights of its base; that of a file is loaded if need be."""
        models = self.models.values()
        trunk = next((each.trunk for each in models if each.trunk.is_base(change.base)), None)
        if trunk is None:
            if file is None:
                raise WeightsError(f"the delta needs its base {change.base}, which is not served")
            trunk = Trunk(load_base(change, file), self.device, *self._how)
        if change.config.fit == "native":  # images of different sizes are not mixed
            return self._whole(name, change.apply(trunk.base))
        with torch.device("meta"):
            facts = build(change.config)
        facts.provenance, facts.unlike = dict(change.provenance), change.unlike
        task = f"{name} {next(self._numbers)}"
        trunk.add(task, change)
        weakref.finalize(facts, trunk.left.append, task)  # once no request holds it
        return self._begin(name, facts, trunk, task, change.bytes)

    def _whole(self, name: str, model: Model, head: Head | None = None) -> Served:
        """Serve a model of its own."""
        how = self._how if head is None else form_of(head, *self._how)
        trunk = Trunk(model, self.device, *how, head)
        size = sum(tensor.nbytes for tensor in model.state_dict().values())
        return self._begin(name, trunk.base, trunk, BASE, size)

    def _begin(self, name: str, facts: Model, trunk: Trunk, task: str, size: int) -> Served:
        """Describe a model and let it compute once."""
        config, several = facts.config, kind_of(facts).several
        card = ServedModel(
            name=name,
            model=config.name,
            image_size=config.size,
            features=config.features,
            several=several,
            thresholds=facts.thresholds if several else (),
            trunk="" if task == BASE else trunk.identity.fingerprint[:12],
            bytes=size,
            added=time.time(),
            attention=trunk.head is None and has_attention(facts),
            engine=trunk.fast.engine,
            precision=trunk.precision,
            **told(trunk.head or config),
        )
        served = Served(card, facts, trunk, task, wanted_by(config, trunk.head))
        facts.temperature  # noqa: B018 (a damaged one is refused now)
        self._ready(served)
        return served
