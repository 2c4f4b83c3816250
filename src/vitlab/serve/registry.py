"""Registry of the models that are served: added, replaced and removed while others compute.

A trunk is one set of weights on the device; models that differ from it in a few tensors share it.
"""

import copy
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from vitlab.data.labels import kind_of
from vitlab.errors import OptionError, WeightsError
from vitlab.inspect.look import attention_bytes
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.options import check_known
from vitlab.precision import Engine, ServePrecision
from vitlab.serve.decoders import Wanted
from vitlab.serve.heads import Head, Kind, form_of, load_head, told, wanted_by
from vitlab.serve.trunk import BASE, Form, MakeInt8, Trunk, choose_form
from vitlab.weights.deltas import Delta
from vitlab.weights.load import load
from vitlab.weights.load_delta import load_base, load_delta

Source = str | Path | Model | Delta
MOST_ATTENTION = 2**29  # bytes of one image's attention maps


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
    """of its computing: fp32, bf16 or int8"""
    answers: Kind = "classes"
    """what /predict gives; a model without a classifier has features alone"""
    targets: tuple[str, ...] = ()
    """of numbers: their names"""
    numbers: tuple[int, ...] = ()
    """of masks: the number of each class"""
    thresholds: Annotated[tuple[float, ...], Field(exclude=True)] = ()


def has_attention(model: Model) -> bool:
    """Whether `inspect.late_attention` can say where a model looked, in bounded memory."""
    config = model.config
    if not isinstance(model, VisionTransformer) or config.fit == "native":
        return False
    return attention_bytes(model, config.size) <= MOST_ATTENTION


@dataclass(frozen=True, eq=False)
class Served:
    """One model, as a request takes it at the door and holds it until its reply is written.

    All that an answer needs is here, and none of it changes: a model that is replaced, or computed
    by another form, is another value.

    Attributes:
        card: what is said about it
        facts: configuration and provenance of the model, without its weights
        trunk: where its weights are
        task: its name there
        form: what computes it
        wanted: what its images are decoded to
        batch: most images in one pass
        untimed: whether a form may be faster that has not been timed on this machine
    """

    card: ServedModel
    facts: Model
    trunk: Trunk
    task: str
    form: Form
    wanted: Wanted
    batch: int = 1
    untimed: bool = False


class Registry:
    """The models that are served, by name, in the order in which they were added.

    Args:
        device: that computes
        ready: called with each model before requests can reach it, for the most images of a batch
        precision: auto, fp32, bf16 or int8
        engine: that computes
        int8_form: makes the form for int8

    Attributes:
        models: by name; replaced, never changed
    """

    def __init__(
        self,
        device: torch.device,
        ready: Callable[[Served], int],
        precision: ServePrecision = "fp32",
        engine: Engine = "auto",
        int8_form: MakeInt8 | None = None,
    ) -> None:
        self.device, self._ready, self._how = device, ready, (precision, engine)
        self._int8_form = int8_form
        self.models: dict[str, Served] = {}
        self._numbers = itertools.count(1)
        self._loading = threading.Lock()  # held as long as a model takes to load
        self._changing = threading.Lock()  # of `models`: held for no longer than it takes to copy

    @property
    def precision(self) -> ServePrecision:
        """What was asked for."""
        return self._how[0]

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
        with self._loading:
            if replace:
                check_known([name], self.models, "model")
            elif name in self.models:
                raise OptionError(f"there is a model {name!r} already: replace or remove it")
            self._put(name, source)

    def put(self, name: str, source: Source) -> bool:
        """Load a model in this thread, and serve it in place of one of its name, if there is one.

        Returns:
            Whether there was one.

        Raises:
            OptionError, WeightsError: as `add` does.
        """
        with self._loading:
            return self._put(name, source)

    def remove(self, name: str) -> None:
        """Serve a model no longer, once it has answered what it was asked; this waits for nothing.

        Raises:
            OptionError: there is no model of this name.
        """
        with self._changing:
            check_known([name], self.models, "model")
            self.models = {key: each for key, each in self.models.items() if key != name}

    def change_form(self, served: Served, form: Form) -> bool:
        """Let another form compute a model from now on; what it was asked before it finishes.

        Args:
            served: the model as it is
            form: of its trunk

        Returns:
            Whether it is so: not of a model that has been replaced or removed.
        """
        changed = self._ready_with(replace(served, form=form, untimed=False))
        with self._changing:
            name = served.card.name
            if self.models.get(name) is not served:
                return False
            self.models = self.models | {name: changed}
            return True

    def _put(self, name: str, source: Source) -> bool:
        """Load a model, and serve it."""
        if not name:
            raise OptionError("a model needs a name")
        served = self._made(name, source)
        with self._changing:
            old = name in self.models
            self.models = self.models | {name: served}
        return old

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
            trunk = Trunk(load_base(change, file), self.device, self.precision)
        if change.config.fit == "native":  # images of different sizes are not mixed
            return self._whole(name, change.apply(trunk.base))
        with torch.device("meta"):
            facts = build(change.config)
        facts.provenance, facts.unlike = dict(change.provenance), change.unlike
        task = f"{name} {next(self._numbers)}"
        trunk.add(task, change)
        weakref.finalize(facts, trunk.left.append, task)  # once no request holds it
        card = self._card(name, facts, trunk, change.bytes, trunk.identity.fingerprint[:12])
        wanted = wanted_by(facts.config, trunk.head)
        return self._ready_with(Served(card, facts, trunk, task, trunk.plain, wanted))

    def _whole(self, name: str, model: Model, head: Head | None = None) -> Served:
        """Serve a model of its own."""
        how = self._how if head is None else form_of(head, *self._how)
        trunk = Trunk(model, self.device, how[0], head)
        form = choose_form(trunk, how[0], how[1], self._int8_form)
        size = sum(tensor.nbytes for tensor in model.state_dict().values())
        card = self._card(name, trunk.base, trunk, size)
        wanted = wanted_by(model.config, head)
        served = Served(card, trunk.base, trunk, BASE, form or trunk.plain, wanted)
        return self._ready_with(replace(served, untimed=form is None))

    def _ready_with(self, served: Served) -> Served:
        """Let a model compute once; return it with the card of its form, and its batch."""
        form = served.form
        how = {"engine": form.network.engine, "precision": form.precision}
        served = replace(served, card=served.card.model_copy(update=how))
        return replace(served, batch=self._ready(served))

    def _card(
        self, name: str, facts: Model, trunk: Trunk, size: int, fingerprint: str = ""
    ) -> ServedModel:
        """Describe a model, but for what computes it."""
        config, several = facts.config, kind_of(facts.provenance).several
        facts.temperature  # noqa: B018 (a damaged one is refused now)
        return ServedModel(
            name=name,
            model=config.name,
            image_size=config.size,
            features=config.features,
            several=several,
            thresholds=facts.thresholds if several else (),
            trunk=fingerprint,
            bytes=size,
            added=time.time(),
            attention=trunk.head is None and has_attention(facts),
            **told(trunk.head or config),
        )
