"""The device that computes, and its precision."""

import ctypes
import os
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from vitlab.errors import DeviceError
from vitlab.machine.control_groups import memory_left

T = TypeVar("T")
NAMES = "auto, cpu, cuda, cuda:N or mps"
PROCESS = Path("/proc/self")  # of Linux
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
MEMORY = Path("/proc/meminfo")


def choose(name: str) -> torch.device:
    """Return a device by name: auto, cpu, cuda, cuda:N or mps; auto is the first GPU, else the CPU.

    Raises:
        DeviceError: an unknown device, or one that this machine lacks.
    """
    if name == "auto":
        other = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else other)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"unknown device {name!r}: choose {NAMES}") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise DeviceError(f"unsupported device {name!r}: choose {NAMES}")
    if device.type == "mps" and (device.index or not torch.backends.mps.is_available()):
        raise DeviceError(f"device {name!r} is missing: PyTorch finds none; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU"
        raise DeviceError(f"device {name!r} is missing: PyTorch finds {found}; use --device cpu")
    return device


def described(device: torch.device) -> str:
    """Return a device in words: `cpu, 2 threads` or `cuda (NVIDIA H100 80GB HBM3)`."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    if device.type == "mps":
        return "mps (Apple's GPU)"
    threads = torch.get_num_threads()
    return f"{device.type}, {threads} thread{'s' * (threads != 1)}"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context that computes with fp32 weights in `precision`: bf16 autocast, or none."""
    half = precision.startswith("bf16")
    return torch.autocast(device.type, torch.bfloat16) if half else nullcontext()


def forked_random(device: torch.device) -> AbstractContextManager[None]:
    """Return the context after which PyTorch's own generators are as before."""
    own = [] if device.type == "cpu" else [device]
    context: AbstractContextManager[None] = torch.random.fork_rng(own, device_type=device.type)
    return context


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def fetched(tensors: list[Tensor]) -> Callable[[], list[Tensor]]:
    """Begin to copy tensors of one device to the host; the function returned waits for the copies.

    Meanwhile a GPU can be given more to do.
    """
    if all(tensor.device.type != "cuda" for tensor in tensors):
        return lambda: [tensor.cpu() for tensor in tensors]
    pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for target, tensor in zip(pinned, tensors, strict=True):
        target.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def wait() -> list[Tensor]:
        copied.synchronize()
        return [target.clone() for target in pinned]  # pinned memory is scarce

    return wait


def behind(works: Iterable[Callable[[], T]], device: torch.device) -> Iterator[T]:
    """Yield what each function returns, in order.

    On a GPU a function is called only after the next one has been made, so that the GPU has work
    while the host waits for results, as of `fetched`.
    """
    unread: deque[Callable[[], T]] = deque()
    for work in works:
        unread.append(work)
        if len(unread) > (device.type != "cpu"):
            yield unread.popleft()()
    while unread:
        yield unread.popleft()()


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, as the next training step needs it again.

    Blocks that are kept are in pieces, which took up to half as much again as the tensors in them.
    The C library gives large blocks back to the system, which fills each with zeros page by page
    when it is asked for anew: up to 8% of a step on a CPU. Only glibc.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if libc.mallopt(M_MMAP_THRESHOLD, 2**30):  # bytes, from which a block is mapped
            libc.mallopt(M_TRIM_THRESHOLD, -1)  # nothing is given back


def restart_peak(device: torch.device) -> None:
    """Let the peak of memory begin again, as far as the system can.

    Memory that was freed is given back first: the peak is that of what follows, beside what is in
    use: on a CPU also Python's and the libraries', some 300 MB.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "mps":
        torch.mps.empty_cache()
    else:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            (PROCESS / "clear_refs").write_text("5", encoding="ascii")


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of memory so far: of the GPU, or of this process on a CPU.

    That is since `restart_peak`, where it was called. Of Apple's GPU it is what PyTorch has
    allocated and keeps for later tensors.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    if (most := _stated(PROCESS / "status", "VmHWM")) is not None:
        return most
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def _stated(file: Path, name: str) -> int | None:
    """Return the bytes that Linux states beside a name in a file; None where it does not."""
    with suppress(OSError, ValueError, KeyError):
        text = file.read_text(encoding="utf-8", errors="replace")
        lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return int(lines[name].split()[0]) * 1024
    return None


def free_memory(device: torch.device | None = None) -> int:
    """Return the bytes of memory that are free, as far as the system reports it.

    Args:
        device: a GPU; a CPU or None for the machine's own memory, or what a container's limit
            leaves of it
    """
    kind = device.type if device else "cpu"
    if kind == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if kind == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    if (free := _stated(MEMORY, "MemAvailable")) is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min([free, *memory_left()])
