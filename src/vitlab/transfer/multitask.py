"""Many fine-tuned models at the memory of one and a little more each.

The use that Three things, section 4, has in mind for attention-only fine-tuning: the tasks share
the FFNs, two thirds of the weights. Each task's model is built around the base's own tensors and
the few that it changed. Tasks that changed the classifier alone are one model, and pass together.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.errors import OptionError, WeightsError
from vitlab.measure.allocated import bytes_of
from vitlab.models.config import ModelConfig
from vitlab.models.create import MODEL_OF, assemble
from vitlab.models.layers import classifier
from vitlab.models.model import Model
from vitlab.options import check_known
from vitlab.public_calls import public
from vitlab.weights.assembly import whole_state
from vitlab.weights.deltas import Delta, delta
from vitlab.weights.formats.format_api import OF_IMAGES
from vitlab.weights.identity import base_of
from vitlab.weights.load import load
from vitlab.weights.load_delta import load_delta
from vitlab.weights.on_base import merged

Change = Delta | Model | str | Path
# Fields that say nothing about how a model in evaluation mode computes its features.
NEUTRAL = {
    *OF_IMAGES, "classes", "zero_head", "head_bias", "resampling", "drop_path", "drop_path_ramp",
    "dropout",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class TaskModel:
    """One task's model.

    Attributes:
        config: its whole configuration
        kind: equal for tasks of one body; empty if the body has tensors of its own
        body: its model without a classifier, around the base's tensors and its own
        classify: its classifier
        layer: that says how far an image is from its training images; 0 if none does
    """

    config: ModelConfig
    kind: tuple[Any, ...]
    body: Model
    classify: nn.Module
    layer: int


class MultiTask:
    """One base and what each task changed, for batches of any mixture of tasks.

    Tasks that changed the classifier alone pass through the base together, all others by
    themselves. Memory is that of the base and the deltas: nothing is copied.

    Calls, `add` and `remove` may come from several threads; a batch that is under way keeps the
    tasks that it began with.

    Args:
        base: the model that the tasks were fine-tuned from, or where to load it from; its tensors
            are used as they are, on their device, and must not be changed afterwards
        deltas: by the task's name: a `Delta`, a file of one, or a model fine-tuned from the base

    Raises:
        WeightsError: a delta of another base; the message names both.
        OptionError: the name of a task is empty.
    """

    @public(base=(Model, str, Path))
    def __init__(
        self, base: Model | str | Path, deltas: Mapping[str, Change] | None = None
    ) -> None:
        self.base = load(base) if isinstance(base, str | Path) else base
        self._tensors = {name: t.detach() for name, t in whole_state(self.base).items()}
        self._identity = base_of(self.base)
        self._changing = threading.Lock()
        self._tasks: dict[str, TaskModel] = {}
        for name, change in (deltas or {}).items():
            self.add(name, change)

    @property
    def tasks(self) -> dict[str, ModelConfig]:
        """The names of the tasks, each with its model's configuration (classes, mean, std, …)."""
        return {name: task.config for name, task in self._tasks.items()}

    @property
    def bytes(self) -> int:
        """Memory of all tensors; those that are shared count once."""
        parts = [each for task in self._tasks.values() for each in (task.body, task.classify)]
        own = (t for part in parts for t in (*part.parameters(), *part.buffers()))
        return bytes_of([*self._tensors.values(), *own])

    def add(self, name: str, change: Change) -> None:
        """Add a task; it can be used as soon as this returns.

        Args:
            name: new
            change: a `Delta`, a file of one, or a model fine-tuned from the base

        Raises:
            OptionError: there is such a task.
            WeightsError: the delta is another base's, or damaged.
        """
        found = self._delta_of(change)
        if found.base.fingerprint != self._identity.fingerprint:
            raise WeightsError(
                f"task {name!r} has the wrong base: its delta was made from {found.base}, not from "
                f"{self._identity}"
            )
        with self._changing:
            if name in self._tasks:
                raise OptionError(f"there is a task {name!r} already: remove it first")
            self._tasks = self._tasks | {name: self._task(found)}

    def remove(self, name: str) -> None:
        """Remove a task, and free what it alone used once no batch needs it.

        Raises:
            OptionError: there is no such task.
        """
        with self._changing:
            check_known([name], self._tasks, "task")
            self._tasks = {key: task for key, task in self._tasks.items() if key != name}

    def __call__(self, images: Tensor | Sequence[Tensor], tasks: Sequence[str]) -> list[Tensor]:
        """Compute class scores of images of several tasks.

        Args:
            images: normalized as each one's task wants it, on the base's device:
                (B, channels, H, W), or a list of (channels, H, W), whose sizes may differ
            tasks: the name of each image's task

        Returns:
            A tensor (classes,) per image, in the order of the images; (queries, classes) for a
            model with several queries.

        Raises:
            OptionError: an unknown task, or images that do not fit; the message says what would.
        """
        return [scores for _, scores in self.scored(images, tasks)]

    def features(self, images: Tensor | Sequence[Tensor], tasks: Sequence[str]) -> list[Tensor]:
        """Compute the classifier's input: (features,) for each image, as `__call__` its scores."""
        return [features for features, _ in self.scored(images, tasks)]

    def body(self, task: str) -> Model:
        """Return a task's model up to its features; what it shares is not copied.

        Its classifier and its configuration may be another task's.

        Raises:
            OptionError: there is no such task.
        """
        known = self._tasks
        check_known([task], known, "task")
        return known[task].body

    def scored(
        self, images: Tensor | Sequence[Tensor], tasks: Sequence[str]
    ) -> list[tuple[Tensor, Tensor]]:
        """Compute features and scores, in a pass for each body."""
        return [(features, scores) for features, scores, _ in self.judge(images, tasks)]

    @torch.inference_mode()
    def judge(
        self, images: Tensor | Sequence[Tensor], tasks: Sequence[str]
    ) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Compute the same, and the inner features that the `unlike` of a task's delta needs."""
        known = self._tasks  # replaced by `add` and `remove`, never changed
        if len(images) != len(tasks):
            raise OptionError(f"{len(images)} images need as many tasks, not {len(tasks)}")
        check_known(tasks, known, "task")
        found: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}
        layers = {id(known[name].body): known[name].layer for name in tasks if known[name].layer}
        same: dict[tuple[int, int], list[int]] = defaultdict(list)  # images of a body and layer
        for number, name in enumerate(tasks):
            config, shape = known[name].config, tuple(images[number].shape)
            if shape != (want := (config.channels, *config.size)):
                raise OptionError(f"an image of task {name!r} must be {want}, not {shape}")
            own = id(known[name].body)
            same[own, known[name].layer or layers.get(own, 0)].append(number)
        for (_, layer), order in same.items():
            batch = torch.stack([images[number] for number in order])
            body = known[tasks[order[0]]].body
            seen, inner = (
                body.features_with_inner(batch, layer) if layer else (body.features(batch), None)
            )
            for name in dict.fromkeys(tasks[number] for number in order):
                rows = [row for row, number in enumerate(order) if tasks[number] == name]
                inputs = seen[rows]
                looked = [None] * len(rows) if inner is None else inner[rows]
                each = zip(inputs, known[name].classify(inputs), looked, strict=True)
                found |= dict(zip([order[row] for row in rows], each, strict=True))
        return [found[number] for number in range(len(tasks))]

    def _delta_of(self, change: Change) -> Delta:
        if isinstance(change, Delta):
            return change
        if not isinstance(change, Model):
            if (found := load_delta(change)) is not None:
                return found
            change = load(change)
        return delta(change, self.base)

    def _task(self, found: Delta) -> TaskModel:
        """Return the task of a delta, with its tensors on the base's device."""
        config, device = found.config, next(iter(self._tensors.values())).device
        changed = {name: tensor.to(device) for name, tensor in found.tensors.items()}
        tensors = merged(config, changed, self._tensors)
        head, plain = MODEL_OF[type(config)].head_names[0], replace(config, classes=0, labels=())
        last = {n.removeprefix(head): t for n, t in tensors.items() if n.startswith(head)}
        inner = {name: t for name, t in tensors.items() if not name.startswith(head)}
        kind: tuple[Any, ...] = ()
        if all(name.startswith(head) for name in changed):
            kind = type(config), *((k, v) for k, v in vars(config).items() if k not in NEUTRAL)
        like = (task.body for task in self._tasks.values() if kind and task.kind == kind)
        body = next(like, None) or assemble(plain, inner).requires_grad_(False)
        body.seen = self.base.seen if kind else np.union1d(found.seen, self.base.seen)
        with torch.device("meta"):
            classify = classifier(config).eval().requires_grad_(False)
        classify.load_state_dict(last, assign=True)
        layer = found.unlike.layer if found.unlike else 0
        return TaskModel(config, kind, body, classify, layer)
