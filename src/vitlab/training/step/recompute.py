"""Making a batch fit into memory: the largest pass that fits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from vitlab.device import free_memory as free_memory
from vitlab.device import peak_memory, restart_peak
from vitlab.errors import DeviceError
from vitlab.measure.allocated import Allocated
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
        "out of memory with one image per pass: choose a smaller --model, --image-size or --batch"
    )


def peak_beside(work: Callable[[], object], device: torch.device, limit: float) -> int:
    """Return the most bytes of tensors while some work is done, beside those that are there.

    Raises:
        MemoryError: they are more than the limit, on a CPU.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        restart_peak(device)
        work()
        return peak_memory(device) - before
    with Allocated(limit) as allocated:
        work()
    return allocated.peak


@contextmanager
def out_of_memory_explained(size: int) -> Iterator[None]:
    """Turn a lack of GPU memory into one line for the user."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "MPS backend out of" not in str(error):
            raise
        have = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
        of = f" of the GPU's {storage(have)}" if have else ""
        raise DeviceError(
            f"out of memory{of} with {size} images per pass: --micro-batch auto finds the number "
            "that fits, --checkpoint-activations makes more fit"
        ) from error
