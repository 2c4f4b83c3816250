"""Tensors on a device: how they are sent there, and in which precision it can compute."""

import torch
from torch import Tensor

WITHOUT_FLOAT64 = ("mps",)
STAGED = 2**16  # bytes up to which CUDA copies from any memory without waiting for the GPU


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for what a GPU is doing."""
    if device.type == "cuda" and torch.cuda.is_available() and tensor.nbytes > STAGED:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type == "cuda")  # mps may copy what is freed


def with_float64(device: torch.device) -> torch.device:
    """Return a device, or the CPU in place of one that has no float64."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def exact(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, where `with_float64` says."""
    return tensor.to(with_float64(tensor.device), torch.float64)


def widest(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for a device that has none."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
