"""Inference speed of a model, and its memory."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from vitlab import device as devices
from vitlab.errors import OptionError
from vitlab.evaluation.compute import borrowed
from vitlab.measure.allocated import peak_bytes
from vitlab.measure.timing import FEWEST, time_passes, waiter
from vitlab.models.model import Model


@dataclass(frozen=True)
class Speed:
    """Inference at one batch size.

    Attributes:
        batch: images per forward pass
        latency: median seconds per batch
        images_per_second: batch / latency
        peak_memory: most bytes in use by tensors, weights and images among them: as a GPU's
            allocator counts them, on a CPU without what an operation needs by itself
    """

    batch: int
    latency: float
    images_per_second: float
    peak_memory: int


def speed(
    model: Model,
    *,
    batch: int = 1,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    seconds: float = 2.0,
) -> Speed:
    """Time a model's forward pass on random images, once it has warmed up (`time_passes`).

    Args:
        model: moved to the device and put into evaluation mode; afterwards it is as before
        batch: images per forward pass
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32, or bf16 autocast
        seconds: how long to repeat; at least three passes are timed

    Raises:
        OptionError: a batch of no images.
        DeviceError: a device that this machine does not have.
    """
    if batch < 1:
        raise OptionError(f"batch must be at least 1, not {batch}")
    where = devices.choose(device)
    on_gpu = where.type == "cuda"
    with borrowed(model, where):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(where)
        with torch.inference_mode(), devices.autocast(where, precision):
            images = torch.randn(batch, model.config.channels, *model.config.size, device=where)
            work, wait = partial(model, images), waiter(where)
            latency = time_passes(work, wait, seconds=seconds, usual=FEWEST).median
            tensors = [*model.parameters(), *model.buffers(), images]
            memory = devices.peak_memory(where) if on_gpu else peak_bytes(work, tensors)
    return Speed(batch, latency, batch / latency, memory)
