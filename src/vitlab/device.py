"""The device that computes, and in what precision."""

import resource
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from vitlab.errors import UserError


def choose(name: str) -> torch.device:
    """`auto` is the first GPU there is, else the CPU.

    Raises:
        ValueError: an unknown device, or one this machine has not.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported: auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        have = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU"
        raise UserError(f"device {name!r} is not there: PyTorch sees {have}; --device cpu works")
    return device


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Where to compute fp32 weights in `precision`: bf16 autocast, or fp32 as it is."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def peak_memory(device: torch.device) -> int:
    """Most bytes held so far: of the GPU's memory, or of this process's own."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
