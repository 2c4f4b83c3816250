"""The processes of one run: what they exchange, and how they agree.

Without torchrun there is one process, `ALONE`, and nothing here costs anything. Processes exchange
numbers and JSON, never pickles.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitlab import errors
from vitlab.errors import UserError
from vitlab.progress import named_if_slow, say

WAITING = "waiting for the other processes"


@dataclass(frozen=True)
class World:
    """One process among those of a run.

    Attributes:
        rank: its number; number 0 writes, prints and reports
        size: number of processes on all machines
        local_rank: its number on its machine
        local_size: number of processes on its machine
        restarted: whether torchrun restarted the run after one of its processes died
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    restarted: bool = False

    @property
    def first(self) -> bool:
        """Whether this is the process that writes, prints and reports."""
        return self.rank == 0

    def say(self, *lines: str) -> None:
        """Print messages for the user, once for all processes."""
        if self.first:
            say(*lines)

    def sums(self, *counts: int) -> list[int]:
        """Return each count summed over all processes."""
        return self._reduced(counts, dist.ReduceOp.SUM)

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set in any process."""
        return [count > 0 for count in self._reduced(flags, dist.ReduceOp.MAX)]

    def _reduced(self, counts: tuple[int, ...], operation: Any) -> list[int]:
        if self.size == 1:
            return list(counts)
        numbers = torch.tensor(counts, dtype=torch.int64)  # on the CPU: no GPU is waited for
        dist.all_reduce(numbers, operation)
        return numbers.tolist()

    def add(self, numbers: Tensor) -> None:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(numbers)

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all processes, by rank."""
        if self.size == 1:
            return [value]
        content = json.dumps(value).encode()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(content)]))
        padded = torch.zeros(max(int(each) for each in lengths), dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        contents = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(contents, padded)
        return [
            json.loads(bytes(each[: int(length)].tolist()))
            for each, length in zip(contents, lengths, strict=True)
        ]

    def broadcast(self, value: Any) -> Any:
        """Return the first process's JSON value in all processes; theirs is ignored."""
        return self.gather(value if self.first else None)[0]

    def shared(self, error: UserError) -> UserError:
        """Mark an error that all processes raise: only the first one reports it."""
        error.quiet = not self.first
        return error

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Raise a user's error of one process in all of them.

        Raises:
            UserError: of the lowest rank that has one, with its own type, in all processes.
        """
        own: UserError | None = None
        try:
            yield
        except UserError as error:
            if self.size == 1:
                raise
            own = error
        with named_if_slow(WAITING, self.first and self.size > 1):
            found = self.gather([type(own).__name__, str(own)] if own else None)
        rank = next((rank for rank, each in enumerate(found) if each), None)
        if rank is not None:
            kind, text = found[rank]
            kind = getattr(errors, kind, UserError)
            raise self.shared(kind(f"process {rank}: {text}" if rank else text)) from own


ALONE = World()
