"""Operations and bytes counted by hand, and shares of what a device can do."""

import math

import pytest
import torch

import vitlab
from vitlab.measure import rates as module
from vitlab.measure.rates import Rates, device_rates
from vitlab.measure.roofline import Work, shares, work_of
from vitlab.models.config import config_of

NAME = "ViT(width=16,depth=2,heads=2,mlp=32)/4"
KINDS = (
    NAME, "BiT-R(1-1)x1", "ViT(width=16,depth=1,heads=2,mlp=32,branches=2)/4",
)  # fmt: skip


def test_elements_of_a_transformer_are_those_counted_by_hand() -> None:
    config = config_of(NAME, classes=3, image_size=8)
    tokens, width, mlp = 5, 16, 32
    block = 0
    for inner, outer in ((width, 3 * width), (width, width), (width, mlp), (mlp, width)):
        block += tokens * (inner + outer)
    block += 4 * tokens * width  # attention reads queries, keys and values and writes their sum
    stem = 3 * 8 * 8 + 4 * width
    found = work_of(config)
    assert found.activations == stem + 2 * block + width + 3
    kernels = 2 * (4 * width**2 + 2 * width * mlp) + 3 * 16 * width + 3 * width
    biases = 2 * (3 * width + width + mlp + width) + width + 3
    assert found.weights == kernels + biases
    assert found.macs == vitlab.measure.cost(config).macs


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_is_counted(name: str) -> None:
    config = config_of(name, classes=3, image_size=32)
    found = work_of(config)
    assert found.activations > 3 * 32 * 32
    assert 0.5 * found.params < found.weights < 2.5 * found.params


def test_bytes_and_operations() -> None:
    work = Work(macs=100, params=10, weights=12, activations=50)
    assert (work.operations(3), work.operations(3, training=True)) == (600, 1800)
    assert work.bytes(3, "fp32") == 4 * (12 + 150)
    assert work.bytes(3, "bf16") == work.bytes(3, "bf16-pure") == 2 * (12 + 150)
    assert work.bytes(3, "bf16", training=True) == 3 * 2 * (12 + 150) + 28 * 10


def test_shares_of_the_rate_and_of_the_roof() -> None:
    work = Work(macs=500, params=0, weights=100, activations=0)  # 1,000 operations, 400 bytes
    fast = Rates("a device", {"fp32": 1e6, "tf32": 4e6, "bf16": 2e6}, 1e6, tf32=False)
    found = shares(work, fast, "fp32", 1, 0.002)  # 500,000 per second, of 2.5 per byte
    assert (found.of_products, found.of_roofline) == pytest.approx((0.5, 0.5))
    assert (found.intensity, found.bound) == (2.5, "products")
    slow = Rates("a device", {"fp32": 1e6, "bf16": 2e6}, 2e5, tf32=False)
    found = shares(work, slow, "fp32", 1, 0.002)
    assert (found.of_products, found.of_roofline) == pytest.approx((0.5, 1.0))
    assert found.bound == "memory"
    assert shares(work, fast, "bf16", 1, 0.002).of_products == pytest.approx(0.25)
    assert shares(work, fast, "fp32", 1, 0.002, training=True).of_products == pytest.approx(1.5)
    with_tf32 = Rates("a device", fast.products, 1e6, tf32=True)
    assert shares(work, with_tf32, "fp32", 1, 0.002).of_products == pytest.approx(0.125)


def test_rates_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDE", {"cpu": 128})
    monkeypatch.setattr(module, "COPIED", {"cpu": 2**20})
    before = torch.get_float32_matmul_precision()
    found = device_rates("cpu")
    assert set(found.products) == {"fp32", "bf16"}
    assert all(
        math.isfinite(rate) and rate > 0 for rate in (*found.products.values(), found.bandwidth)
    )
    assert found.device.startswith("cpu")
    assert torch.get_float32_matmul_precision() == before


def test_rates_count_two_operations_and_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDE", {"cpu": 8})
    monkeypatch.setattr(module, "COPIED", {"cpu": 64})
    monkeypatch.setattr(module, "_median", lambda work, where: 0.5)
    found = device_rates("cpu")
    assert found.products["fp32"] == 2 * 8**3 / 0.5
    assert found.bandwidth == 2 * 64 / 0.5
