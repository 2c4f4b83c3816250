"""The matrix-product rate of a device, and shares of it."""

import math

import pytest
import torch

from vitlab.measure import rates as module
from vitlab.measure.rates import Rates, device_rates
from vitlab.measure.subject import DeviceLimits
from vitlab.measure.timing import Times


def test_shares_of_the_rate() -> None:
    products = {"fp32": 1e6, "tf32": 4e6, "bf16": 2e6}
    limits = DeviceLimits(500, Rates("a device", products, tf32=False))
    assert limits.share("fp32", 500) == pytest.approx(0.5)  # 1,000 operations an image
    assert limits.share("bf16-pure", 500) == pytest.approx(0.25)
    assert DeviceLimits(500, limits.device, training=True).share("fp32", 500) == pytest.approx(1.5)
    with_tf32 = DeviceLimits(500, Rates("a device", products, tf32=True))
    assert with_tf32.share("fp32", 500) == pytest.approx(0.125)


def test_rates_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDE", {"cpu": 128})
    before = torch.get_float32_matmul_precision()
    found = device_rates("cpu")
    assert set(found.products) == {"fp32", "bf16"}
    assert all(math.isfinite(rate) and rate > 0 for rate in found.products.values())
    assert found.device.startswith("cpu")
    assert torch.get_float32_matmul_precision() == before


def test_rates_count_two_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDE", {"cpu": 8})
    times = Times(0.5, 0.5, 0.5, 1, 0)
    monkeypatch.setattr(module, "time_passes", lambda work, wait, **how: times)
    assert device_rates("cpu").products["fp32"] == 2 * 8**3 / 0.5
