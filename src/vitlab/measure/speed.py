"""How fast a model answers, and in how much memory."""

import statistics
import time
from dataclasses import dataclass
from typing import Literal

import torch

from vitlab import device as devices
from vitlab.evaluation.borrowing import borrowed
from vitlab.models.model import Model


@dataclass(frozen=True)
class Speed:
    """Inference at one batch size.

    Attributes:
        batch: images at once
        latency: seconds a batch, the median
        images_per_second: batch over latency
        peak_memory: most bytes held, of the GPU or of this process
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
    """Time a model's forward pass on random images, after two passes to warm up.

    Args:
        model: its device and mode are the same afterwards
        batch: images at once
        device: auto, cpu, cuda or cuda:N
        precision: fp32, or bf16 autocast
        seconds: how long to repeat, three times at the least
    """
    where = devices.choose(device)
    images = torch.randn(batch, model.config.channels, *model.config.size, device=where)
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats(where)
    times: list[float] = []
    with borrowed(model, where), torch.inference_mode(), devices.autocast(where, precision):
        for _ in range(2):
            model(images)
        end = time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < end:
            _wait(where)
            start = time.perf_counter()
            model(images)
            _wait(where)
            times.append(time.perf_counter() - start)
    latency = statistics.median(times)
    return Speed(batch, latency, batch / latency, devices.peak_memory(where))


def _wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize(where)
