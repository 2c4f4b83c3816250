"""Which tensors of another format make which of ours: tables that are read both ways.

An entry connects a few of our tensors with a few of theirs, with a function in each direction. The
shapes that a file must have are those that writing gives our own empty tensors, so that one table
is enough.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig

Conversion = Callable[[list[Tensor]], list[Tensor]]


class Entry(NamedTuple):
    """Some of our tensors and the same numbers under other names.

    Attributes:
        ours: names in our model's state dict
        theirs: names in the other format; empty for computed values
        read: their tensors to ours
        write: ours to theirs
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Conversion
    write: Conversion

    def renamed(self, rename: Callable[[str], str]) -> "Entry":
        """Return the same entry with their names changed."""
        return self._replace(theirs=tuple(rename(name) for name in self.theirs))


def same(ours: str, theirs: str) -> Entry:
    """Map one tensor as it is."""
    return Entry((ours,), (theirs,), list, list)


def layer(ours: str, theirs: str, bias: bool = True) -> list[Entry]:
    """Map weight and bias of a layer, whose parts are named and shaped alike."""
    parts = ("weight", "bias") if bias else ("weight",)
    return [same(f"{ours}.{part}", f"{theirs}.{part}") for part in parts]


def each(
    ours: str, theirs: str, read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]
) -> Entry:
    """Map one tensor with a conversion in each direction."""
    return Entry((ours,), (theirs,), lambda t: [read(t[0])], lambda t: [write(t[0])])


def shaped(ours: str, theirs: str, own: Sequence[int], other: Sequence[int]) -> Entry:
    """Map one tensor that has another shape there."""
    return each(ours, theirs, lambda t: t.reshape(*own), lambda t: t.reshape(*other))


def stacked(ours: str, theirs: Iterable[str]) -> Entry:
    """Map one of ours that is a stack of theirs: queries, keys and values, for example."""
    names = tuple(theirs)
    if len(names) == 1:
        return same(ours, *names)
    return Entry((ours,), names, lambda t: [torch.cat(t)], lambda t: list(t[0].chunk(len(names))))


def joined(ours: tuple[str, ...], theirs: str, sizes: Sequence[int]) -> Entry:
    """Map a few of ours that are one of theirs, with so many rows each."""
    return Entry(ours, (theirs,), lambda t: list(t[0].split(sizes)), lambda t: [torch.cat(t)])


def without_key(ours: str, query: str, value: str, void: bool = False) -> Entry:
    """Map the bias of queries, keys and values in a format without one for keys.

    Args:
        ours: queries, keys and values in one; that of keys is zero when it is read
        query: the bias of queries
        value: that of values
        void: a key's bias has no effect in this model (`void_keys`), so that writing drops it
    """

    def write(tensors: list[Tensor]) -> list[Tensor]:
        q, k, v = tensors[0].chunk(3)
        if not void and not k.is_meta and k.any():
            raise WeightsError(f"the format cannot represent a bias of keys, which {ours} has")
        return [q, v]

    return Entry((ours,), (query, value), lambda t: [torch.cat([t[0], 0 * t[0], t[1]])], write)


def masked(ours: str, theirs: tuple[str, str]) -> Entry:
    """Map a bias that is multiplied by a mask of the same shape."""

    def read(tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0] * tensors[1]]

    def write(tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0], torch.ones_like(tensors[0])]

    return Entry((ours,), theirs, read, write)


def scaled(ours: str, theirs: str, config: ViTConfig) -> list[Entry]:
    """Map a norm of the model's kind: RMSNorm has no bias."""
    return layer(ours, theirs, bias=config.norm == "layer")


def without_first_row(ours: str, theirs: str) -> Entry:
    """Map positions (1, 1 + N, D), whose first row, of the class token, is zero and not stored."""

    def read(tensors: list[Tensor]) -> list[Tensor]:
        return [torch.cat([torch.zeros_like(tensors[0][:, :1]), tensors[0]], dim=1)]

    def write(tensors: list[Tensor]) -> list[Tensor]:
        first = tensors[0][:, :1]
        if not first.is_meta and first.any():
            raise WeightsError("the format cannot represent a position of the class token")
        return [tensors[0][:, 1:]]

    return Entry((ours,), (theirs,), read, write)


def with_prefix_rows(
    token: bool, registers: int, theirs: tuple[str, str], ours: str = "positions.0.table"
) -> Entry:
    """Map registers (1, R, D) that have positions in the other format: ours are the sum of both.

    Args:
        token: the class token has the first row
        registers: number of rows between that and those of the patches
        theirs: registers and positions (1, token + registers + N, D)
        ours: the positions of the others
    """
    first = int(token)

    def read(tensors: list[Tensor]) -> list[Tensor]:
        own, table = tensors
        others = torch.cat([table[:, :first], table[:, first + registers :]], dim=1)
        rows = table[:, first : first + registers]
        return [torch.where(rows == 0, own, own + rows), others]  # a sum of zeros has one sign

    def write(tensors: list[Tensor]) -> list[Tensor]:
        own, table = tensors
        rows = [table[:, :first], torch.zeros_like(own), table[:, first:]]
        return [own, torch.cat(rows, dim=1)]

    return Entry(("registers", ours), theirs, read, write)


def halves(ours: str, theirs: tuple[str, str]) -> Entry:
    """Map two classifiers whose scores are averaged to one of both representations."""

    def read(tensors: list[Tensor]) -> list[Tensor]:
        if tensors[0].ndim == 1:
            return [(tensors[0] + tensors[1]) / 2]
        return [torch.cat(tensors, dim=1) / 2]

    def write(tensors: list[Tensor]) -> list[Tensor]:
        whole = tensors[0]
        if whole.ndim == 1:
            return [whole, whole.clone()]
        first, second = (2 * whole).chunk(2, dim=1)
        return [first, second]

    return Entry((ours,), theirs, read, write)


def computed(ours: str, value: Callable[[], Tensor]) -> Entry:
    """Compute one of ours that follows from the configuration and is not stored."""
    return Entry((ours,), (), lambda t: [value()], lambda t: [])
