"""Making a batch fit into memory: the largest pass that fits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitlab.device import free_memory as free_memory
from vitlab.errors import DeviceError
from vitlab.units import storage

SHARE = 0.9  # of a device's memory that a batch may take; evaluation and fragments need some


def pieces_to_try(batch: int) -> list[int]:
    """Return the batch size, a half, a quarter and so on of it, and 1."""
    sizes = [batch]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def largest_that_fits(batch: int, fits: Callable[[int], bool]) -> int:
    """Return the largest of `pieces_to_try` that fits.

    Raises:
        DeviceError: not even one image fits.
    """
    for size in pieces_to_try(batch):
        if fits(size):
            return size
    raise DeviceError(
        "out of memory with one image per pass: choose a smaller --model or --image-size"
    )


def try_on_gpu(learn: Callable[[int], None], size: int, device: torch.device) -> bool:
    """Return whether a step with `size` images per pass leaves some of the GPU's memory free."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    try:
        learn(size)
    except torch.OutOfMemoryError:
        return False
    _, total = torch.cuda.mem_get_info(device)
    return torch.cuda.max_memory_reserved(device) <= SHARE * total


def kept_for_backward(forward: Callable[[], Tensor]) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, weights excluded."""
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


@contextmanager
def out_of_memory_explained(size: int) -> Iterator[None]:
    """Turn a lack of GPU memory into one line for the user."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        have = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
        of = f" of the GPU's {storage(have)}" if have else ""
        raise DeviceError(
            f"out of memory{of} with {size} images per pass: --micro-batch auto finds the number "
            "that fits, --checkpoint-activations makes more fit"
        ) from error
