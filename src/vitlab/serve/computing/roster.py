"""The models that are served: added, replaced and removed while others are computed."""

import copy
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from vitlab.data.labels import MultiLabels, SingleLabels, kind_of
from vitlab.errors import OptionError, ServiceError, WeightsError
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.options import check_known
from vitlab.precision import Engine, ServePrecision
from vitlab.serve.computing.trunk import BASE, Trunk, has_attention
from vitlab.serve.decoding.decoders import Wanted
from vitlab.serve.figures import OfModel
from vitlab.serve.seen import ServedModel
from vitlab.weights.deltas import Delta
from vitlab.weights.load import load, load_base, load_delta

Source = str | Path | Model | Delta


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
        labels: the kind that they are
        counts: of what it has done, or what it replaced
        held: its images that are accepted and not yet answered
        gone: whether it was removed; what is computed then is thrown away
        left: whether nothing new comes: it was removed or replaced
        freed: whether its weights were given up
    """

    card: ServedModel
    facts: Model
    trunk: Trunk
    task: str
    wanted: Wanted
    batch: int
    labels: type[SingleLabels] | type[MultiLabels]
    counts: OfModel = field(default_factory=OfModel)
    held: int = 0
    gone: bool = False
    left: bool = False
    freed: bool = False

    def check(self) -> None:
        """Refuse to go on with a model that was removed.

        Raises:
            ServiceError: it was.
        """
        if self.gone:
            raise ServiceError(f"the model {self.card.name!r} was removed")

    def hold(self, images: int) -> None:
        """Count images accepted, or answered if negative; free the weights after the last one."""
        self.held += images
        if self.left and not self.held and not self.freed:
            self.freed = True
            self.trunk.remove(self.task)


class Roster:
    """The models that are served, by name, in the order in which they were added.

    Args:
        device: that computes
        ready: called with each model before requests can reach it
        precision: auto, fp32, bf16 or int8
        engine: that computes
    """

    def __init__(
        self,
        device: torch.device,
        ready: Callable[[Served], None],
        precision: ServePrecision = "fp32",
        engine: Engine = "auto",
    ) -> None:
        self.device, self._ready, self._how = device, ready, (precision, engine)
        self._models: dict[str, Served] = {}  # replaced, never changed
        self._changing, self._numbers = threading.Lock(), itertools.count(1)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def models(self) -> dict[str, Served]:
        """The models by name."""
        return self._models

    def find(self, name: str) -> Served:
        """Return a model by name; the first one for an empty name.

        Raises:
            OptionError: there is none.
        """
        models = self._models
        if not models:
            raise OptionError("no model is served: add one")
        if not name:
            return next(iter(models.values()))
        check_known([name], models, "model")
        return models[name]

    def add(self, name: str, source: Source) -> Served:
        """Load a model, and serve it under a new name.

        Raises:
            OptionError: the name is taken or empty.
            WeightsError: it cannot be loaded.
        """
        if not name:
            raise OptionError("a model needs a name")
        with self._changing:
            if name in self._models:
                raise OptionError(f"there is a model {name!r} already: replace or remove it")
            made = self._made(name, source)
            self._models = self._models | {name: made}
        return made

    def replace(self, name: str, source: Source) -> Served:
        """Load a model, and serve it in place of another one, whose requests end as they began.

        Raises:
            OptionError: there is no model of this name.
            WeightsError: it cannot be loaded.
        """
        with self._changing:
            check_known([name], self._models, "model")
            made, old = self._made(name, source), self._models[name]
            made.counts = old.counts
            self._models = self._models | {name: made}
        old.left = True
        return old

    def remove(self, name: str) -> Served:
        """Serve a model no longer.

        Raises:
            OptionError: there is no model of this name.
        """
        with self._changing:
            check_known([name], self._models, "model")
            old = self._models[name]
            self._models = {key: each for key, each in self._models.items() if key != name}
        old.gone = old.left = True
        return old

    def cards(self) -> list[ServedModel]:
        """Return what is said about each model."""
        models = list(self._models.values())
        trunks = [each.trunk for each in models]
        return [
            replace(each.card, trunk=each.trunk.identity.fingerprint[:12])
            if each.task != BASE or trunks.count(each.trunk) > 1
            else each.card
            for each in models
        ]

    def _made(self, name: str, source: Source) -> Served:
        """Load a model and make it ready."""
        if isinstance(source, Model):
            here = next(source.parameters()).device == self.device
            return self._whole(name, source if here else copy.deepcopy(source))
        change = source if isinstance(source, Delta) else load_delta(source)
        if isinstance(source, str | Path) and change is None:
            return self._whole(name, load(source))
        assert change is not None
        models = self._models.values()
        trunk = next((each.trunk for each in models if each.trunk.is_base(change.base)), None)
        if trunk is None and isinstance(source, str | Path):
            trunk = Trunk(load_base(change, source), self.device, *self._how)
        if trunk is None:
            raise WeightsError(f"the delta needs its base {change.base}, which is not served")
        return self._changed(name, change, trunk)

    def _whole(self, name: str, model: Model) -> Served:
        """Serve a model of its own."""
        trunk = Trunk(model, self.device, *self._how)
        return self._begin(name, trunk.base, trunk, BASE, trunk.bytes)

    def _changed(self, name: str, change: Delta, trunk: Trunk) -> Served:
        """Serve a delta on its base's weights."""
        if change.config.fit == "native":  # images of different sizes are not mixed
            return self._whole(name, change.apply(trunk.base))
        task = f"{name} {next(self._numbers)}"
        trunk.add(task, change)
        try:
            with torch.device("meta"):
                facts = build(change.config)
            facts.provenance, facts.unlike = dict(change.provenance), change.unlike
            return self._begin(name, facts, trunk, task, change.bytes)
        except BaseException:
            trunk.remove(task)
            raise

    def _begin(self, name: str, facts: Model, trunk: Trunk, task: str, size: int) -> Served:
        """Describe a model and let it compute once."""
        config = facts.config
        kind = kind_of(facts)
        card = ServedModel(
            name=name,
            model=config.name,
            classes=config.class_names,
            image_size=config.size,
            features=config.features,
            several=kind.several,
            thresholds=facts.thresholds if kind.several else (),
            trunk="",
            bytes=size,
            added=time.time(),
            attention=has_attention(facts),
            engine=trunk.fast.engine,
            precision=trunk.precision,
        )
        same = [each.batch for each in self._models.values() if each.trunk is trunk]
        served = Served(card, facts, trunk, task, Wanted.by(config), max(same, default=0), kind)
        facts.temperature  # noqa: B018 (a damaged one is refused now)
        self._ready(served)
        return served
