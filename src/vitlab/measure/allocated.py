"""The bytes of a model's tensors on a CPU, counted as they come and go."""

import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitlab.optim.sliced import local


class Allocated(TorchDispatchMode):
    """Within its context, counts the storages of the results of operations while they are alive.

    What an operation allocates and frees by itself is not seen.

    Attributes:
        now: bytes alive that were allocated within the context
        peak: the most of them at any time

    Args:
        limit: bytes, beyond which the operation that took them raises MemoryError
    """

    def __init__(self, limit: float = math.inf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = limit
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operation and note what it returns."""
        for each in tree_leaves((args, kwargs)):
            self._note(each, there=True)  # or noted when it was allocated
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            self._note(each)
        if self.now > self.limit:
            raise MemoryError(f"{self.now} bytes of tensors")
        return result

    def _note(self, value: Any, *, there: bool = False) -> None:
        if not isinstance(value, Tensor) or value.is_mkldnn:  # those have no storage to watch
            return
        storage = local(value).untyped_storage()
        place = storage.data_ptr()
        if not storage.nbytes() or place in self._sizes:
            return
        self._sizes[place] = 0 if there else storage.nbytes()
        self.now += self._sizes[place]
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, place)

    def _free(self, place: int) -> None:
        self.now -= self._sizes.pop(place)


def peak_bytes(work: Callable[[], object], tensors: Iterable[Tensor]) -> int:
    """Return the most bytes that are in use while some work is done on a CPU.

    Args:
        work: what is done
        tensors: that are there before and stay; those that share memory count once
    """
    with Allocated() as allocated:
        work()
    return bytes_of(tensors) + allocated.peak


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of some tensors; those that share memory count once."""
    storages: dict[int, int] = {}
    for each in tensors:
        if each.is_mkldnn:  # laid out for oneDNN: no storage, and never shared
            storages[-id(each)] = each.numel() * each.element_size()
        else:
            storages[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
    return sum(storages.values())
