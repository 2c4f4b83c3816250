"""The processes of one run: what they exchange, and how they agree.

Without torchrun there is one process, `ALONE`, and nothing here costs anything. Processes exchange
numbers and JSON, never pickles.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitlab import errors
from vitlab.distributed.heartbeat import LONGEST, Heartbeat
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
        pulse: seconds between two signs of life of a process that works alone
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    restarted: bool = False
    pulse: float = LONGEST

    @property
    def reads_first(self) -> bool:
        """Whether this is the process of its machine that reads first."""
        return self.local_rank == 0

    @property
    def has_several_machines(self) -> bool:
        """Whether the processes run on several machines."""
        return self.local_size < self.size

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
        _check_none_alone()
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
        _check_none_alone()
        content = json.dumps(value).encode()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(content)]))
        padded = torch.zeros(max(int(each) for each in lengths), dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        contents = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(contents, padded)
        return [
            json.loads(each[: int(length)].numpy().tobytes())
            for each, length in zip(contents, lengths, strict=True)
        ]

    def broadcast(self, value: Any) -> Any:
        """Return the first process's JSON value in all processes; theirs is ignored."""
        if self.size == 1:
            return value
        return json.loads(self.broadcast_bytes(json.dumps(value).encode() if self.first else b""))

    def broadcast_bytes(self, content: bytes) -> bytes:
        """Return the first process's bytes in all processes; theirs are ignored."""
        if self.size == 1:
            return content
        _check_none_alone()
        length = torch.tensor([len(content)])
        dist.broadcast(length, 0)
        if not int(length):
            return b""
        if self.first:
            dist.broadcast(torch.frombuffer(bytearray(content), dtype=torch.uint8), 0)
            return content
        received = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(received, 0)
        return received.numpy().tobytes()

    def from_first(self, make: Callable[[], Any]) -> Any:
        """Return the JSON value that the first process makes alone, in all processes.

        Raises:
            UserError: as in the first process.
        """
        with self.agreed():
            made = make() if self.first else None
        return self.broadcast(made)

    def shared(self, error: UserError) -> UserError:
        """Mark an error that all processes raise: only the first one reports it."""
        error.quiet = not self.first
        return error

    @contextmanager
    def agreed(self, *, exchanging: bool = False) -> Iterator[None]:
        """Raise a user's error of one process in all of them; wait for each as long as it lives.

        The block may take longer than the timeout of collective calls, and makes none of them.

        Args:
            exchanging: whether the block makes collective calls nevertheless, so that no process
                is alone in it for long

        Raises:
            UserError: of the lowest rank that has one, with its own type, in all processes.
        """
        if self.size == 1:
            yield
            return
        own: UserError | None = None
        heartbeat = None
        if not exchanging:
            _check_none_alone()
            heartbeat = Heartbeat(self.pulse)
        try:
            yield
        except UserError as error:
            own = error
        except BaseException:
            if heartbeat is not None:
                heartbeat.leave()
            raise
        with named_if_slow(WAITING, self.first):
            if heartbeat is None:
                failed = self.any(own is not None)[0]
            else:
                failed = heartbeat.finish(own is not None)
            if not failed:
                return
            found = self.gather([type(own).__name__, str(own)] if own else None)
        rank, (kind, text) = next((rank, each) for rank, each in enumerate(found) if each)
        if own is not None and self.rank == rank == 0:
            raise own
        kind = getattr(errors, kind, UserError)
        raise self.shared(kind(f"process {rank}: {text}" if rank else text)) from own


ALONE = World()


def _check_none_alone() -> None:
    """Refuse a collective call within a block of `agreed`, whose heartbeat makes others."""
    assert not Heartbeat.beating, "a collective call while processes work alone"
