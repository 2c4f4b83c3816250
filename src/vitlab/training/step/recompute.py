"""Making a batch fit: activations recomputed, and the largest piece that a device can hold."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.errors import UserError
from vitlab.units import storage

SHARE = 0.9  # of a device's memory that a batch may take: evaluation and fragments want some


@contextmanager
def recomputed(model: nn.Module, on: bool) -> Iterator[None]:
    """In the block a model keeps of each encoder block its input only (Chen et al., 2016).

    The backward pass computes a block once more, with the random numbers it had, so dropout and
    stochastic depth fall as they fell and every gradient has the same bits.
    """
    if not on:
        yield
        return
    blocks = getattr(model, "blocks", None)
    assert isinstance(blocks, nn.ModuleList)
    for block in blocks:
        block.forward = _recomputing(block.forward)  # in the instance, before the class's own
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _recomputing(forward: Callable[..., Tensor]) -> Callable[..., Any]:
    def forward_again(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    return forward_again


def pieces_to_try(batch: int) -> list[int]:
    """The whole batch, its half, its quarter, …, one image."""
    sizes = [batch]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def largest_that_fits(batch: int, fits: Callable[[int], bool]) -> int:
    """The largest piece of a batch that fits.

    Raises:
        ValueError: not one image does.
    """
    for size in pieces_to_try(batch):
        if fits(size):
            return size
    raise UserError("out of memory with one image at once: a smaller model or --image-size may fit")


def try_on_gpu(learn: Callable[[int], None], size: int, device: torch.device) -> bool:
    """Whether a step with so many images at once leaves some of the GPU's memory free."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    try:
        learn(size)
    except torch.OutOfMemoryError:
        return False
    _, total = torch.cuda.mem_get_info(device)
    return torch.cuda.max_memory_reserved(device) <= SHARE * total


def kept_for_backward(forward: Callable[[], Tensor]) -> int:
    """Bytes that a forward pass keeps for the backward one, weights not counted."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            whole = tensor.untyped_storage()
            kept[whole.data_ptr()] = whole.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()  # alive until counted, so that no storage is used twice
    total = sum(kept.values())
    del result
    return total


def free_memory() -> int:
    """Bytes that this machine can still give, as far as the system tells."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123
            values = dict(line.split(":", 1) for line in lines)
        return int(values["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@contextmanager
def out_of_memory_explained(size: int) -> Iterator[None]:
    """Turn the lack of GPU memory into one line for the user."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        have = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
        of = f" of the GPU's {storage(have)}" if have else ""
        raise UserError(
            f"out of memory{of} with {size} images at once: --micro-batch auto finds what fits, "
            "--checkpoint-activations yes makes more fit"
        ) from error
