"""Several models that share most of their tensors, run as one over a batch of all their images.

A model with a few tensors of its own (`variant`) consists of the very modules of the model it came
from, but for those on the way to its own tensors. So two of them differ exactly where their
modules are not the same object, and `together` needs to look nowhere else.
"""

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitlab.models.encoder.block import Branch
from vitlab.models.vit import VisionTransformer


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
