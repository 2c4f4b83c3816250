"""Which tensors of another format make which of ours: tables that read and write.

An entry ties a few of our tensors to a few of theirs, with a function each way. The shapes that a
file must have are those that writing makes of our own empty tensors, so one table says everything.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitlab.errors import UserError

Turn = Callable[[list[Tensor]], list[Tensor]]


class Entry(NamedTuple):
    """Some of our tensors and the same numbers under other names.

    Attributes:
        ours: names in our model's state dict
        theirs: names in the other format; none for what is computed
        read: their tensors to ours
        write: ours to theirs
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Turn
    write: Turn

    def renamed(self, rename: Callable[[str], str]) -> "Entry":
        """The same entry with their names changed."""
        return self._replace(theirs=tuple(rename(name) for name in self.theirs))


def same(ours: str, theirs: str) -> Entry:
    """One tensor as it is."""
    return Entry((ours,), (theirs,), list, list)


def layer(ours: str, theirs: str, bias: bool = True) -> list[Entry]:
    """Weight and bias of a layer whose parts have the same names and shapes."""
    parts = ("weight", "bias") if bias else ("weight",)
    return [same(f"{ours}.{part}", f"{theirs}.{part}") for part in parts]


def each(
    ours: str, theirs: str, read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]
) -> Entry:
    """One tensor, turned."""
    return Entry((ours,), (theirs,), lambda t: [read(t[0])], lambda t: [write(t[0])])


def shaped(ours: str, theirs: str, own: Sequence[int], other: Sequence[int]) -> Entry:
    """One tensor in another shape."""
    return each(ours, theirs, lambda t: t.reshape(*own), lambda t: t.reshape(*other))


def stacked(ours: str, theirs: Iterable[str]) -> Entry:
    """One of ours that is theirs on top of each other: queries, keys and values, say."""
    names = tuple(theirs)
    return Entry((ours,), names, lambda t: [torch.cat(t)], lambda t: list(t[0].chunk(len(names))))


def without_key(ours: str, query: str, value: str) -> Entry:
    """The bias of queries, keys and values where theirs has none for keys.

    A key's bias moves all logits of a query alike, so it does nothing; ours is zero.
    """

    def write(tensors: list[Tensor]) -> list[Tensor]:
        q, k, v = tensors[0].chunk(3)
        if not k.is_meta and k.any():
            raise UserError(f"{ours} has a bias for keys, for which that format has no place")
        return [q, v]

    return Entry((ours,), (query, value), lambda t: [torch.cat([t[0], 0 * t[0], t[1]])], write)


def masked(ours: str, theirs: tuple[str, str]) -> Entry:
    """A bias that is multiplied by a mask of the same shape."""

    def read(tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0] * tensors[1]]

    def write(tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0], torch.ones_like(tensors[0])]

    return Entry((ours,), theirs, read, write)


def without_first_row(ours: str, theirs: str) -> Entry:
    """Positions (1, 1 + N, D) where theirs has none for the class token: our first row is zero."""

    def read(tensors: list[Tensor]) -> list[Tensor]:
        return [torch.cat([torch.zeros_like(tensors[0][:, :1]), tensors[0]], dim=1)]

    def write(tensors: list[Tensor]) -> list[Tensor]:
        first = tensors[0][:, :1]
        if not first.is_meta and first.any():
            raise UserError("that format has no position for the class token, and this model has")
        return [tensors[0][:, 1:]]

    return Entry((ours,), (theirs,), read, write)


def with_prefix_rows(token: bool, registers: int, theirs: tuple[str, str]) -> Entry:
    """Registers (1, R, D) that have positions elsewhere: the sum is what our registers are.

    Args:
        token: whether the class token has the first row
        registers: how many rows follow it before those of the patches
        theirs: registers and positions (1, token + registers + N, D)
    """
    first = int(token)

    def read(tensors: list[Tensor]) -> list[Tensor]:
        own, table = tensors
        kept = torch.cat([table[:, :first], table[:, first + registers :]], dim=1)
        return [own + table[:, first : first + registers], kept]

    def write(tensors: list[Tensor]) -> list[Tensor]:
        own, table = tensors
        rows = [table[:, :first], torch.zeros_like(own), table[:, first:]]
        return [own, torch.cat(rows, dim=1)]

    return Entry(("registers", "positions.0.table"), theirs, read, write)


def halves(ours: str, theirs: tuple[str, str]) -> Entry:
    """Two classifiers whose scores are averaged, as one that sees both representations."""

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
    """One of ours that theirs does not store because it follows from the configuration."""
    return Entry((ours,), (), lambda t: [value()], lambda t: [])
