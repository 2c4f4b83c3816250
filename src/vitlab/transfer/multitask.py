"""Many fine-tuned models at the memory of one and a little more each, run as one.

The use that Three things, section 4, has in mind for attention-only fine-tuning: the tasks share
the FFNs, two thirds of the weights, so that a batch of several tasks' images needs them once.

A model with a few tensors of its own (`variant`) consists of the very modules of the model it came
from, but for those on the way to its own tensors. So two of them differ exactly where their
modules are not the same object, and `together` needs to look nowhere else.
"""

import copy
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.device import sent
from vitlab.errors import OptionError, WeightsError
from vitlab.models.config import ModelConfig
from vitlab.models.create import MODEL_OF, build
from vitlab.models.encoder.block import Branch
from vitlab.models.layers import classifier
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.options import check_known
from vitlab.progress import public
from vitlab.weights.assembly import whole_state
from vitlab.weights.deltas import Delta, delta, merged
from vitlab.weights.identity import Base
from vitlab.weights.load import load, load_delta
from vitlab.weights.save import OF_IMAGES

Change = Delta | Model | str | Path
# Fields that say nothing about how a model in evaluation mode computes its features.
NEUTRAL = frozenset(
    {
        *OF_IMAGES, "classes", "zero_head", "head_bias", "resampling", "drop_path",
        "drop_path_ramp", "dropout",
    }
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Task:
    """One task's model.

    Attributes:
        config: its whole configuration
        structure: equal for models whose features one pass can compute
        trunk: the modules and tensors that all tasks of this structure share
        body: the trunk with the task's own tensors
        classify: its classifier
        changed: names of the task's own tensors
    """

    config: ModelConfig
    structure: tuple[Any, ...]
    trunk: Model
    body: nn.Module
    classify: nn.Module
    changed: tuple[str, ...]


class MultiTask:
    """One base and what each task changed, for batches of any mixture of tasks.

    A layer that no task of a batch changed is one product over all rows; a layer with weights of a
    task's own runs by task. Tasks of another input size or structure than the others' pass through
    the layers by themselves. Memory is that of the base and the deltas: nothing is copied.

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
        self._identity = Base.of(self.base)
        self._changing = threading.Lock()
        self._tasks: dict[str, Task] = {}
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
        held = [*self._tensors.values(), *(t for part in parts for t in _tensors_of(part))]
        places = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        return sum(places.values())

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
        return cast(Model, known[task].body)

    @torch.inference_mode()
    def scored(
        self, images: Tensor | Sequence[Tensor], tasks: Sequence[str]
    ) -> list[tuple[Tensor, Tensor]]:
        """Compute features and scores, in as few passes as the tasks' structures allow."""
        known = self._tasks  # replaced by `add` and `remove`, never changed
        if len(images) != len(tasks):
            raise OptionError(f"{len(images)} images need as many tasks, not {len(tasks)}")
        check_known(tasks, known, "task")
        for number, name in enumerate(tasks):
            _check_image(images[number], name, known[name].config)
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for names in _passes(known, set(tasks)):
            places = [[i for i, each in enumerate(tasks) if each == name] for name in names]
            order = [number for numbers in places for number in numbers]
            if isinstance(images, Tensor):
                rows = sent(torch.tensor(order), images.device)
                batch = images.index_select(0, rows)
            else:
                batch = torch.stack([images[number] for number in order])
            results = _scored([known[name] for name in names], [*map(len, places)], batch)
            found |= dict(zip(order, results, strict=True))
        return [found[number] for number in range(len(tasks))]

    def _delta_of(self, change: Change) -> Delta:
        if isinstance(change, Delta):
            return change
        if not isinstance(change, Model):
            if (found := load_delta(change)) is not None:
                return found
            change = load(change)
        return delta(change, self.base)

    def _task(self, found: Delta) -> Task:
        """Return the task of a delta, with its tensors on the base's device."""
        config, device = found.config, next(iter(self._tensors.values())).device
        changed = {name: tensor.to(device) for name, tensor in found.tensors.items()}
        tensors = merged(config, changed, self._tensors)
        head = MODEL_OF[type(config)].head_names[0]
        structure = _structure(config, tensors)
        like = (task.trunk for task in self._tasks.values() if task.structure == structure)
        trunk = next(like, None) or _trunk(config, self._tensors)
        own = {name: tensor for name, tensor in changed.items() if not name.startswith(head)}
        last = {n.removeprefix(head): t for n, t in tensors.items() if n.startswith(head)}
        body, classify = variant(trunk, own), trunk.get_submodule(head[:-1])
        if isinstance(body, Model) and body is not trunk:
            body.seen = np.union1d(found.seen, self.base.seen)
        if config.classes != trunk.config.classes or own.keys() != changed.keys():
            with torch.device("meta"):
                classify = classifier(config).eval()
            classify = variant(classify, last)
        return Task(config, structure, trunk, body, classify, tuple(sorted(changed)))


def _structure(config: ModelConfig, tensors: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """Return what two models must have in common for one pass over the rows of both."""
    values = {k: v for k, v in vars(config).items() if k not in NEUTRAL}
    if "layer_scale" in values:  # its initial value
        values["layer_scale"] = bool(values["layer_scale"])
    types = {str(tensor.dtype) for tensor in tensors.values()}
    return type(config), *sorted(values.items()), *sorted(types)


def _trunk(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Model:
    """Return a model of the base's tensors; those that do not fit it are left without memory.

    A task of this structure has its own for them, since a delta holds whatever is not the base's.
    """
    with torch.device("meta"):
        trunk = build(config)
    shapes = {name: tensor.shape for name, tensor in trunk.state_dict().items()}
    fitting = {name: t for name, t in tensors.items() if shapes.get(name) == t.shape}
    trunk.load_state_dict(fitting, strict=False, assign=True)
    trunk.refresh(next(iter(tensors.values())).device)
    return trunk.requires_grad_(False).eval()


def _check_image(image: Tensor, name: str, config: ModelConfig) -> None:
    want = (config.channels, *config.size)
    if image.shape != want:
        raise OptionError(f"an image of task {name!r} must be {want}, not {tuple(image.shape)}")


def _passes(known: Mapping[str, Task], names: Iterable[str]) -> list[list[str]]:
    """Group tasks by structure; those that changed the same layers stand beside each other."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in sorted(names, key=lambda name: (known[name].changed, name)):
        groups.setdefault(known[name].structure, []).append(name)
    return list(groups.values())


def _scored(tasks: list[Task], rows: list[int], batch: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Return features and scores of some tasks' images, of one structure, task after task."""
    features = together([task.body for task in tasks], rows).features(batch)
    parts = list(zip([task.classify for task in tasks], features.split(rows), strict=True))
    scores: list[Tensor] = []
    for _, same in groupby(parts, lambda part: id(part[0])):
        classifiers, seen = zip(*same, strict=True)
        scores += classifiers[0](torch.cat(seen))
    return zip(features, scores, strict=True)


def _tensors_of(module: nn.Module) -> Iterable[Tensor]:
    """Yield the parameters and buffers of a module that have memory."""
    return (t for t in (*module.parameters(), *module.buffers()) if not t.is_meta)


def variant(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a module with some tensors of its own; all others, and their modules, are shared.

    Args:
        module: does not change
        tensors: by their names in the module; taken over without a copy
    """
    if not tensors:
        return module
    result, inner = _shallow(module), defaultdict[str, dict[str, Tensor]](dict)
    for name, tensor in tensors.items():
        first, _, rest = name.partition(".")
        if rest:
            inner[first][rest] = tensor
        elif first in result._parameters:
            result._parameters[first] = nn.Parameter(tensor, requires_grad=False)
        else:
            result._buffers[first] = tensor
    for name, own in inner.items():
        result._modules[name] = variant(result.get_submodule(name), own)
    return result


def together(modules: Sequence[nn.Module], rows: Sequence[int]) -> Any:
    """Return what stands for several variants of one module; it is called as that module is.

    The batch has the rows of the first variant, then those of the second, and so on. A layer that
    all variants share runs once, over all rows; one with tensors of its own runs by variant.

    Args:
        modules: from `variant`, of the same module
        rows: images of each
    """
    first = modules[0]
    if all(module is first for module in modules):
        return first
    own = [dict(_own_tensors(module)) for module in modules]
    names = {name for name in own[0] if any(each[name] is not own[0][name] for each in own)}
    if names - PerRow.names(first):
        return Apart(modules, rows)
    result: Any = _shallow(first)
    for name in names:
        result._parameters[name] = PerRow.joined(
            [module.get_parameter(name) for module in modules], rows
        )
    for name, child in first._modules.items():
        if child is not None:
            children = [module.get_submodule(name) for module in modules]
            result._modules[name] = together(children, rows)
    return result


class PerRow:
    """Tensors that take part in sums and products with whole tokens, (B, N, D), and in no others.

    Those of all variants together are (B, 1, D), a row for each image, and broadcast as one does:
    so LayerScale alone does not make the branch below it run by variant.
    """

    OF: ClassVar[dict[type[nn.Module], frozenset[str]]] = {
        Branch: frozenset({"scale"}),
        VisionTransformer: frozenset({"token", "registers"}),
    }

    @classmethod
    def names(cls, module: nn.Module) -> frozenset[str]:
        """Return the names of such tensors in a module."""
        return cls.OF.get(type(module), frozenset())

    @staticmethod
    def joined(tensors: Sequence[Tensor], rows: Sequence[int]) -> Tensor:
        """Repeat each for its rows: (D,) or (1, T, D) -> (B, T, D)."""
        whole = [tensor.reshape(1, -1, tensor.shape[-1]) for tensor in tensors]
        return torch.cat([t.expand(n, -1, -1) for t, n in zip(whole, rows, strict=True)])


class Apart:
    """A module that runs by variant: each on its own rows, whatever method is called.

    A tensor has some number of rows per image, image by image, as where attention is along lines;
    one with a single row is the same for all images.
    """

    def __init__(self, modules: Sequence[nn.Module], rows: Sequence[int]) -> None:
        pairs = zip(modules, rows, strict=True)
        runs = [list(run) for _, run in groupby(pairs, lambda pair: id(pair[0]))]
        self.modules = [run[0][0] for run in runs]
        self.rows = [sum(count for _, count in run) for run in runs]

    def __call__(self, *inputs: Any) -> Any:
        """Call each variant with its rows, and put its results back in their places."""
        return Method(self, "__call__")(*inputs)

    def __getattr__(self, name: str) -> Any:
        """Return a method, to be called as the module itself is, or a common value."""
        value = getattr(self.modules[0], name)
        return Method(self, name) if callable(value) else value

    def part(self, first: int, last: int) -> "Apart":
        """Return what runs the images from number `first` to before `last`."""
        ends = accumulate(self.rows)
        pairs = zip(self.modules, self.rows, ends, strict=True)
        kept = [(m, min(end, last) - max(end - count, first)) for m, count, end in pairs]
        return Apart(*zip(*((module, count) for module, count in kept if count > 0), strict=True))


class Method:
    """A method of all variants."""

    def __init__(self, of: Apart, name: str) -> None:
        self.of, self.name = of, name

    def __call__(self, *inputs: Any) -> Any:
        """Call each variant with its rows, and put its results back in their places."""
        calls = [getattr(module, self.name) for module in self.of.modules]
        parts = zip(*(_split(value, self.of.rows) for value in inputs), strict=True)
        return _joined([call(*p) for call, p in zip(calls, parts, strict=True)], self.of.rows)


def _split(value: Any, rows: list[int]) -> Sequence[Any]:
    """Return each variant's rows of an input, which may be variants of a module itself."""
    if isinstance(value, Apart):
        ends = zip(rows, accumulate(rows), strict=True)
        return [value.part(end - count, end) for count, end in ends]
    if not isinstance(value, Tensor) or len(value) == 1:
        return [value] * len(rows)
    each = len(value) // sum(rows)
    return value.split([count * each for count in rows])


def _joined(results: list[Any], rows: list[int]) -> Any:
    """Put results one below the other; a tensor with a single row is repeated for its images."""
    if isinstance(results[0], tuple):
        return tuple(_joined(list(same), rows) for same in zip(*results, strict=True))
    if isinstance(results[0], nn.Module):  # what a module makes of itself, as for another grid
        return Apart(results, rows)
    if not isinstance(results[0], Tensor):
        return results[0]
    pairs = zip(results, rows, strict=True)
    return torch.cat([r.expand(n, *r.shape[1:]) if len(r) == 1 else r for r, n in pairs])


def _own_tensors(module: nn.Module) -> list[tuple[str, Tensor | None]]:
    """Return the parameters and buffers of a module without those of its children."""
    return [*module._parameters.items(), *module._buffers.items()]


def _shallow(module: nn.Module) -> nn.Module:
    """Return a copy with the same tensors and children, where both can be replaced."""
    result = copy.copy(module)
    for registry in ("_parameters", "_buffers", "_modules"):  # copied by reference
        setattr(result, registry, dict(getattr(module, registry)))
    return result
