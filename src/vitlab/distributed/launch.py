"""Joining the other processes of a run, which `torchrun` starts and describes by its environment.

PyTorch's process group carries what they exchange.
"""

import ctypes
import os
import re
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitlab import device as devices
from vitlab.distributed.heartbeat import LostContactError, pulse_of
from vitlab.distributed.world import WAITING, World
from vitlab.errors import DeviceError, RunError, UserError
from vitlab.progress import named_if_slow

LOST = re.compile(r"gloo|nccl|connection|timed out|broken pipe|\bstore\b", re.IGNORECASE)


def read_environment(environment: Mapping[str, str]) -> World:
    """Return this process's place as torchrun describes it; `World()` without torchrun."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        return World()
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    local_rank = int(environment.get("LOCAL_RANK", rank))
    local_size = int(environment.get("LOCAL_WORLD_SIZE", size))
    restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT", 0))
    return World(rank, size, local_rank, local_size, restarts > 0)


def choose_device(name: str, world: World) -> torch.device:
    """Return the device of a process, as `device.choose`; each process gets a GPU of its own.

    Raises:
        DeviceError: an unknown device, or fewer GPUs than processes.
    """
    if world.size == 1:
        return devices.choose(name)
    if name.startswith("cuda:"):
        raise DeviceError(
            f"device {name!r} is a single GPU, but there are {world.size} processes: "
            "use --device cuda"
        )
    device = devices.choose(name)
    if device.type == "mps" and name != "auto":
        raise DeviceError("mps is one GPU, for one process: use --device cpu for several")
    if device.type != "cuda":
        return torch.device("cpu")
    if world.local_size > torch.cuda.device_count():
        raise DeviceError(
            f"{world.local_size} processes on a machine with {torch.cuda.device_count()} GPUs: use "
            f"torchrun --nproc-per-node {torch.cuda.device_count()}, or --device cpu"
        )
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


@contextmanager
def joined(
    device: str, timeout: float, *, resumes: bool = True, option: str = ", or raise --timeout"
) -> Iterator[tuple[World, torch.device]]:
    """Join the other processes of the run, if torchrun started several; leave at the end.

    Args:
        device: as for `device.choose`
        timeout: seconds to wait for another process before giving up
        resumes: whether the command has `--resume`, for the advice
        option: what it has to wait longer, for the advice

    Raises:
        RunError: another process died or hangs.
        DeviceError: the device is missing.
    """
    world = read_environment(os.environ)
    chosen = choose_device(device, world)
    if world.size == 1:
        yield world, chosen
        return
    with warnings.catch_warnings():
        # of weights with a dimension of one, whose strides mean nothing
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        advice = (
            "with --resume to continue from the newest checkpoint" if resumes else "all of them"
        )
        with _group(world, chosen, timeout, advice, option):
            yield replace(world, pulse=pulse_of(timeout)), chosen


@contextmanager
def _group(
    world: World, device: torch.device, timeout: float, advice: str, option: str
) -> Iterator[None]:
    """Join and leave PyTorch's process group."""
    wait = timedelta(seconds=timeout)
    try:
        with named_if_slow(WAITING, world.first):
            store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=wait))
            dist.init_process_group(
                "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
                store=meet(store, world, timeout, option),
                rank=world.rank,
                world_size=world.size,
                timeout=wait,
                device_id=device if device.type == "cuda" else None,
            )
        # A gloo group that is freed while one of its threads still lets go of a tensor waits for
        # that thread, which waits for the interpreter lock (PyTorch 2.13): so it is never freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
        yield
    except RuntimeError as error:  # PyTorch has no single class for it
        lost = isinstance(error, LostContactError) or LOST.search(f"{type(error).__name__} {error}")
        if not lost:
            raise
        raise RunError(
            f"process {world.rank} of {world.size} lost contact with the others (one died or "
            f"hangs): rerun {advice}"
        ) from error
    except (UserError, KeyboardInterrupt):
        if dist.is_initialized():
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def meet(store: Store, world: World, timeout: float, option: str = "") -> Store:
    """Return a part of torchrun's store that belongs to the processes that are alive now.

    The store outlives a restart, and with it the addresses of dead processes, to which PyTorch 2.13
    would connect. So the first process calls, the others answer that call with a token, and a
    process that sees its own token repeated knows that the caller is alive.

    Raises:
        RunError: not all processes came in time.
    """
    mine, deadline = uuid.uuid4().hex, time.monotonic() + timeout
    if world.first:
        store.set("call", mine)
    while time.monotonic() < deadline:
        if world.first:
            answers = [_value(store, f"answer {rank}") for rank in range(1, world.size)]
            tokens = [
                token for call, _, token in (a.partition(" ") for a in answers) if call == mine
            ]
            if len(tokens) == world.size - 1:
                store.set("all", " ".join([mine, *tokens]))
                return PrefixStore(mine, store)
        elif call := _value(store, "call"):
            store.set(f"answer {world.rank}", f"{call} {mine}")
            present = _value(store, "all").split()
            if mine in present:
                return PrefixStore(present[0], store)
        time.sleep(0.02)
    raise RunError(
        f"process {world.rank} timed out after {timeout:g} s waiting for all {world.size} "
        f"processes to start: start them all{option}"
    )


def _value(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""
