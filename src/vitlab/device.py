"""The device that computes, and its precision."""

import resource
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from vitlab.errors import DeviceError


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


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of memory so far: of the GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
