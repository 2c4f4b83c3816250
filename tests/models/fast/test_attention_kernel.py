"""The attention kernel of a fast model is measured once for each shape, and changes no output."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitlab
from vitlab.models.fast import attention_kernel as room

CPU, FP32 = torch.device("cpu"), torch.float32
FLASH, CUDNN, EFFICIENT = room.KERNELS


def made_times(monkeypatch: pytest.MonkeyPatch, times: dict[Any, float]) -> None:
    """Let kernels take so long, in their order; PyTorch's choice comes first."""
    order = iter(times)

    def taken(work: Any, device: torch.device) -> float:
        own = times[next(order)]
        if own < 0:
            raise RuntimeError("No available kernel")
        return own

    monkeypatch.setattr(room, "taken", taken)


@pytest.mark.parametrize(
    ("times", "want"),
    [
        ({None: 1.0, FLASH: 0.9, CUDNN: 0.6, EFFICIENT: 0.7}, CUDNN),
        ({None: 1.0, FLASH: 0.9, CUDNN: -1.0, EFFICIENT: 0.7}, EFFICIENT),  # cuDNN cannot
        ({None: 1.0, FLASH: 0.98, CUDNN: 1.2, EFFICIENT: 1.1}, None),  # saves too little
    ],
)
def test_the_fastest_that_can_is_chosen(
    monkeypatch: pytest.MonkeyPatch, times: dict[Any, float], want: SDPBackend | None
) -> None:
    made_times(monkeypatch, times)
    assert room.fastest((1, 2, 5, 8), FP32, CPU) is want


def test_without_memory_to_measure_it_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*shape: int, **kind: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch, "randn", full)
    assert room.fastest((1, 2, 5, 8), FP32, CPU) is None


def test_a_kernel_that_cannot_is_replaced() -> None:
    """That of cuDNN is not for a CPU."""
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(RuntimeError, match=r"backend|kernel"), sdpa_kernel(CUDNN):
        F.scaled_dot_product_attention(q, q, q)
    with room.preferring(CUDNN):
        found = F.scaled_dot_product_attention(q, q, q)
    assert torch.allclose(found, F.scaled_dot_product_attention(q, q, q), atol=1e-6)


@torch.inference_mode()
def test_each_shape_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=32)/8", 3, 32, branches=2, registers=3)
    torch.nn.init.normal_(model.head.classify.weight)
    fast = vitlab.accelerate(model, device="cpu", precision="fp32")
    shapes, entered = [], []

    def fastest(shape: room.Shape, dtype: torch.dtype, device: torch.device) -> SDPBackend:
        assert (dtype, device) == (FP32, CPU)
        shapes.append(shape)
        return CUDNN

    seen = room.preferring

    def preferring(kernel: SDPBackend | None) -> Any:
        entered.append(kernel)
        return seen(kernel)

    real = room.taken
    monkeypatch.setattr(room, "fastest", fastest)
    monkeypatch.setattr(room, "preferring", preferring)
    room.measure_attention(fast, FP32)
    small, large = torch.randn(1, 3, 32, 32), torch.randn(2, 3, 48, 48)
    for images in (small, small, large, small, large):
        assert torch.allclose(fast(images), model(images), atol=1e-5)
    assert shapes == [(1, 4, 1 + 3 + 16, 8), (2, 4, 1 + 3 + 36, 8)]  # heads of both branches
    assert entered == 5 * [CUDNN]
    assert room.taken is real


def test_the_shape_is_that_of_the_model_s_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/8", 3, 32, branches=2)
    shapes, tokens = [], []
    monkeypatch.setattr(room, "fastest", lambda shape, *_: shapes.append(shape))
    attend = F.scaled_dot_product_attention

    def spied(q: torch.Tensor, *others: Any, **more: Any) -> torch.Tensor:
        tokens.append(tuple(q.shape))
        return attend(q, *others, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spied)
    fast = vitlab.accelerate(model, device="cpu", precision="fp32")
    room.measure_attention(fast, FP32)
    with torch.inference_mode():
        fast.encode(torch.randn(2, 3, 32, 48))
        fast.encode(torch.randn(2, 3, 32, 48), torch.randn(2, 5, 16))
    assert shapes == tokens


def test_time_is_positive() -> None:
    assert 0 < room.taken(lambda: torch.ones(2), CPU) < 1
