"""The device that computes, and its precision."""

import ctypes
import functools
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
STAGED = 2**16  # bytes up to which CUDA copies from any memory without waiting for the GPU
PROCESS = Path("/proc/self")  # of Linux
PROCESSOR = Path("/proc/cpuinfo")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
MEMORY = Path("/proc/meminfo")


def choose(name: str) -> torch.device:
    """Return a device by name: auto, cpu, cuda or cuda:N; auto is the first GPU, else the CPU.

    Raises:
        DeviceError: an unknown device, or one that this machine lacks.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"unknown device {name!r}: choose auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"unsupported device {name!r}: choose auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU"
        raise DeviceError(f"device {name!r} is missing: PyTorch finds {found}; use --device cpu")
    return device


def described(device: torch.device) -> str:
    """Return a device in words: `cpu, 2 threads` or `cuda (NVIDIA H100 80GB HBM3)`."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"{device.type}, {threads} thread{'s' * (threads != 1)}"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context that computes with fp32 weights in `precision`: bf16 autocast, or none."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for what a GPU is doing."""
    if device.type == "cuda" and torch.cuda.is_available() and tensor.nbytes > STAGED:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def fetched(tensors: list[Tensor]) -> Callable[[], list[Tensor]]:
    """Begin to copy tensors of one device to the host; the function returned waits for the copies.

    Meanwhile a GPU can be given more to do.
    """
    if all(tensor.device.type != "cuda" for tensor in tensors):
        return lambda: tensors
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
        if len(unread) > (device.type == "cuda"):
            yield unread.popleft()()
    while unread:
        yield unread.popleft()()


@functools.cache
def prefers_onednn() -> bool:
    """Return whether oneDNN multiplies fp32 matrices faster here than MKL, PyTorch's choice.

    The processor's maker and instructions decide, not a timing, so that a run that is resumed
    computes the same bits: AMD's with AVX-512 were measured.
    """
    try:
        facts = PROCESSOR.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return (
        "AuthenticAMD" in facts
        and torch.cpu._is_avx512_supported()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, as the next training step needs it again.

    The C library gives large blocks back to the system, which fills each with zeros page by page
    when it is asked for anew: up to 8% of a step on a CPU. The peak stays the same. Only glibc.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        whole, without_end = 2**30, -1
        if libc.mallopt(M_MMAP_THRESHOLD, whole):
            libc.mallopt(M_TRIM_THRESHOLD, without_end)


def restart_peak(device: torch.device) -> None:
    """Let the peak of memory begin again, as far as the system can.

    Memory that was freed is given back first: the peak is that of what follows, beside what is in
    use: on a CPU also Python's and the libraries', some 300 MB.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of memory so far: of the GPU, or of this process on a CPU.

    That is since `restart_peak`, where it was called.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, ValueError):
        status = (PROCESS / "status").read_text(encoding="utf-8", errors="replace")
        lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def free_memory(device: torch.device | None = None) -> int:
    """Return the bytes of memory that are free, as far as the system reports it.

    Args:
        device: a GPU; a CPU or None for the machine's own memory, or what a container's limit
            leaves of it
    """
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = MEMORY.read_text(encoding="ascii").splitlines()
        values = dict(line.split(":", 1) for line in lines)
        free = int(values["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min([free, *memory_left()])
