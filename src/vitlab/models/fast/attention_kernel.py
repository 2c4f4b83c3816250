"""Which of PyTorch's attention kernels a fast model uses on a GPU: the fastest for each shape.

For inference only. In training the kernel is PyTorch's choice, which does not depend on timing, so
that a run that is resumed computes what it would have computed.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitlab.models.encoder.attention import Attention
from vitlab.models.packed import Packed
from vitlab.models.vit import VisionTransformer

KERNELS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
GAIN = 0.03  # share of the time that another kernel than PyTorch's choice must save
CALLS, ROUNDS = 10, 5

Shape = tuple[int, int, int, int]  # images, heads, tokens, channels of a head


def measure_attention(model: VisionTransformer, dtype: torch.dtype) -> None:
    """Let a fast model compute its attention by the fastest kernel for each shape of its input.

    It is measured when a shape comes for the first time, and kept with the model.

    Args:
        model: on its device; changed in place
        dtype: of its blocks
    """
    attention = next((each for each in model.modules() if isinstance(each, Attention)), None)
    if attention is None or attention.talking is not None or not attention.reach.whole:
        return
    config, encoded = model.config, model._encoded
    heads, channels = attention.heads, attention.project.in_features // attention.heads
    kept: dict[Shape, SDPBackend | None] = {}

    def chosen(
        images: Tensor | Packed, extra: Tensor | None = None, leading: int | None = None
    ) -> list[Tensor]:
        if isinstance(images, Packed):
            return encoded(images, extra, leading)
        rows, columns = config.grid_of(images.shape[2:])
        tokens = config.leading + rows * columns + (0 if extra is None else extra.shape[1])
        shape = len(images), heads, tokens, channels
        if shape not in kept:
            kept[shape] = fastest(shape, dtype, images.device)
        with preferring(kept[shape]):
            return encoded(images, extra, leading)

    model._encoded = chosen  # type: ignore[method-assign]


def preferring(kernel: SDPBackend | None) -> AbstractContextManager[object]:
    """Return a context in which a kernel comes first, where it can; None for PyTorch's choice."""
    if kernel is None:
        return nullcontext()
    others = [each for each in KERNELS if each is not kernel]
    return sdpa_kernel([kernel, *others, SDPBackend.MATH], set_priority=True)


@torch.inference_mode()
def fastest(shape: Shape, dtype: torch.dtype, device: torch.device) -> SDPBackend | None:
    """Measure the kernels on random tokens; None if PyTorch's choice is about as fast.

    Args:
        shape: images, heads, tokens, channels of a head
        dtype: of queries, keys and values
        device: where they are
    """
    images, heads, tokens, channels = shape
    times: dict[SDPBackend | None, float] = {}
    with warnings.catch_warnings(), suppress(RuntimeError):  # of a lack of memory
        warnings.simplefilter("ignore")  # why a kernel is not for such tensors
        made = torch.randn(images, tokens, 3 * heads * channels, dtype=dtype, device=device)
        # as the model lays them out
        q, k, v = made.unflatten(-1, (3, heads, channels)).permute(2, 0, 3, 1, 4)
        for kernel in (None, *KERNELS):
            with suppress(RuntimeError), nullcontext() if kernel is None else sdpa_kernel(kernel):
                times[kernel] = taken(lambda: F.scaled_dot_product_attention(q, k, v), device)
    if None not in times:
        return None
    best = min(times, key=lambda kernel: times[kernel])
    return best if times[best] < (1 - GAIN) * times[None] else None


def taken(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, the median over rounds of several."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(3):
        work()
    found = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            work()
        wait()
        found.append((time.perf_counter() - start) / CALLS)
    return statistics.median(found)
