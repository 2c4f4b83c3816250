"""The processes of one run: who they are, what they tell each other, how they agree.

`torchrun` starts them and says by environment variables which is which; PyTorch's process group
carries what they exchange. Without it there is one process, a `World()` of its own, and nothing
here costs anything. What processes tell each other is numbers and JSON, never pickled.
"""

import ctypes
import json
import os
import re
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitlab import device as devices
from vitlab.data.loading.batches import Batch
from vitlab.errors import UserError
from vitlab.progress import say

LOST = re.compile(r"gloo|nccl|connection|timed out|broken pipe|\bstore\b", re.IGNORECASE)


@dataclass(frozen=True)
class World:
    """One process among those of a run.

    Attributes:
        rank: its number, 0 for the one that writes, prints and reports
        size: how many there are, on all machines
        local_rank: its number on its machine
        local_size: how many there are on its machine
        restarted: whether torchrun started the run anew after a process of it had died
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

    def say(self, text: str) -> None:
        """A message to the user, once for all processes."""
        if self.first:
            say(text)

    def sums(self, *counts: int) -> list[int]:
        """Counts added up over all processes."""
        return self._reduced(counts, dist.ReduceOp.SUM)

    def any(self, *flags: bool) -> list[bool]:
        """Whether a flag is up in any process."""
        return [count > 0 for count in self._reduced(flags, dist.ReduceOp.MAX)]

    def _reduced(self, counts: tuple[int, ...], how: Any) -> list[int]:
        if self.size == 1:
            return list(counts)
        numbers = torch.tensor(counts, dtype=torch.int64)  # on the CPU: no GPU is waited for
        dist.all_reduce(numbers, how)
        return numbers.tolist()

    def add(self, figures: Tensor) -> None:
        """Add up a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(figures)

    def texts(self, text: str) -> list[str]:
        """What every process says, by rank."""
        if self.size == 1:
            return [text]
        mine = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        length = len(text.encode())
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([length]))
        longest = max(1, *(int(each) for each in lengths))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[:length] = mine[:length]
        all_texts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(all_texts, padded)
        return [
            bytes(each[: int(n)].tolist()).decode()
            for each, n in zip(all_texts, lengths, strict=True)
        ]

    def tell(self, value: Any) -> Any:
        """What the first process has, as JSON can hold it; of the others it is not asked."""
        if self.size == 1:
            return value
        return json.loads(self.texts(json.dumps(value) if self.first else "")[0])

    def error(self, text: str) -> UserError:
        """An error that all processes come to; the first tells the user."""
        error = UserError(text)
        error.quiet = not self.first
        return error

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """What one process cannot do, none has done: an error of one becomes an error of all.

        Raises:
            ValueError: the user's error of the lowest rank that has one, in all processes.
        """
        own: UserError | None = None
        try:
            yield
        except UserError as error:
            if self.size == 1:
                raise
            own = error
        said = self.texts(str(own or ""))
        rank = next((rank for rank, text in enumerate(said) if text), None)
        if rank is not None:
            where = f"process {rank}: " if rank else ""
            raise self.error(where + said[rank]) from own


ALONE = World()


def whole(world: World, batch: Batch) -> Batch:
    """A process's slice of a batch, knowing the images and the damage in all slices."""
    if world.size == 1:
        return replace(batch, total=len(batch))
    total, damaged = world.sums(len(batch), len(batch.bad))
    if damaged:
        lists = [json.loads(text) for text in world.texts(json.dumps(batch.bad))]
        bad = [(int(index), str(message)) for each in lists for index, message in each]
        return replace(batch, total=total, bad=bad)
    return replace(batch, total=total)


def passes(batch: Batch, micro: int, world: World, size: int) -> list[tuple[Batch, int]]:
    """The pieces of a process's slice, each with how many of its images count.

    The gradient is exchanged within the passes, so every process makes as many. One that has no
    image for a pass, because its own were damaged, sends a black one through, which counts for
    nothing.

    Args:
        batch: the slice, not empty unless there are other processes
        micro: images at once (0: the whole slice)
        world: the processes that share the batch
        size: images in a whole batch
    """
    if world.size == 1:
        return [(piece, len(piece)) for piece in batch.pieces(micro or len(batch))]
    largest = -(-size // world.size)
    micro -= micro % 2 if micro > 1 else 0  # in pairs, as a batch's pieces are
    count = -(-largest // micro) if micro else 1
    each = -(-len(batch) // count)
    pieces = list(batch.pieces(max(1, each + (each % 2 if micro > 1 else 0))))
    blank: dict[str, Any] = {
        name: value.new_zeros(1, *value.shape[1:])
        for name, value in vars(batch).items()
        if isinstance(value, Tensor)
    }
    idle = [(replace(batch, **blank), 0)] * (count - len(pieces))
    return [(piece, len(piece)) for piece in pieces] + idle


def read_environment(environment: Mapping[str, str]) -> World:
    """What torchrun says of this process; one process alone where it says nothing.

    Raises:
        ValueError: some of its variables are there and others are not, or they are no numbers.
    """
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    there = [name for name in needed if name in environment]
    if len(there) < len(needed):
        return World()
    try:
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local = int(environment.get("LOCAL_RANK", rank))
        beside = int(environment.get("LOCAL_WORLD_SIZE", size))
        restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT", 0))
    except ValueError:
        raise UserError(f"{', '.join(needed)} must be numbers: start with torchrun") from None
    return World(rank, size, local, beside, restarts > 0)


def choose_device(name: str, world: World) -> torch.device:
    """As `device.choose`, and each process of a machine a GPU of its own.

    Raises:
        ValueError: an unknown device, or fewer GPUs than processes.
    """
    if world.size == 1:
        return devices.choose(name)
    if name.startswith("cuda:"):
        raise UserError(f"device {name!r} is one GPU, and there are {world.size} processes: cuda")
    device = devices.choose(name)
    if device.type == "cpu":
        return device
    if world.local_size > torch.cuda.device_count():
        raise UserError(
            f"{world.local_size} processes on a machine of {torch.cuda.device_count()} GPUs: "
            f"torchrun --nproc-per-node {torch.cuda.device_count()}, or --device cpu"
        )
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


@contextmanager
def joined(device: str, timeout: float) -> Iterator[tuple[World, torch.device]]:
    """Join the other processes of the run, where torchrun started several, and leave in the end.

    Args:
        device: as for `device.choose`
        timeout: seconds to wait for another process before giving up

    Raises:
        ValueError: another process died or hangs.
    """
    world = read_environment(os.environ)
    where = choose_device(device, world)
    if world.size == 1:
        yield world, where
        return
    with warnings.catch_warnings():
        # of weights with a dimension of one, whose strides mean nothing
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        with _group(world, where, timeout):
            yield world, where


@contextmanager
def _group(world: World, where: torch.device, timeout: float) -> Iterator[None]:
    """PyTorch's process group, joined and left."""
    wait = timedelta(seconds=timeout)
    try:
        store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=wait))
        dist.init_process_group(
            "gloo" if where.type == "cpu" else "cpu:gloo,cuda:nccl",
            store=meet(store, world, timeout),
            rank=world.rank,
            world_size=world.size,
            timeout=wait,
            device_id=where if where.type == "cuda" else None,
        )
        # A gloo group that is freed while one of its threads still lets go of a tensor waits for
        # that thread, which waits for the interpreter lock (PyTorch 2.13): so it is never freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
        yield
    except RuntimeError as error:  # PyTorch has no one class for it
        if not LOST.search(f"{type(error).__name__} {error}"):
            raise
        raise UserError(
            f"process {world.rank} of {world.size} lost touch with the others, of which one died "
            "or hangs: --resume goes on from the newest checkpoint"
        ) from error
    except (UserError, KeyboardInterrupt):
        if dist.is_initialized():
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def meet(store: Store, world: World, timeout: float) -> Store:
    """A part of torchrun's store that belongs to the processes that live now.

    The store outlives a restart, and with it the addresses of dead processes, which PyTorch 2.13
    would connect to. So the first process calls, the others answer that very call with a token, and
    who sees its token repeated knows that the call was a living one's.

    Raises:
        ValueError: not all processes came in time.
    """
    mine, deadline = uuid.uuid4().hex, time.monotonic() + timeout
    if world.first:
        store.set("call", mine)
    while time.monotonic() < deadline:
        if world.first:
            answers = [_look_up(store, f"answer {rank}") for rank in range(1, world.size)]
            tokens = [
                token for call, _, token in (a.partition(" ") for a in answers) if call == mine
            ]
            if len(tokens) == world.size - 1:
                store.set("all", " ".join([mine, *tokens]))
                return PrefixStore(mine, store)
        elif call := _look_up(store, "call"):
            store.set(f"answer {world.rank}", f"{call} {mine}")
            there = _look_up(store, "all").split()
            if mine in there:
                return PrefixStore(there[0], store)
        time.sleep(0.02)
    raise UserError(
        f"process {world.rank} waited {timeout:g} s in vain for all {world.size} to start"
    )


def _look_up(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""
