"""Devices: which is chosen, and copies to and from one that nobody waits for."""

from typing import Any

import pytest
import torch

from vitlab.device import (
    behind,
    choose,
    described,
    fetched,
    free_memory,
    peak_memory,
    restart_peak,
    synchronize,
)
from vitlab.distributed.launch import choose_device
from vitlab.distributed.world import World
from vitlab.errors import DeviceError
from vitlab.on_device import STAGED, exact, sent, widest, with_float64

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_on_a_cpu_nothing_is_copied() -> None:
    tensor = torch.arange(10.0)
    assert sent(tensor, CPU) is tensor
    (found,) = fetched([tensor])()
    assert found is tensor


def test_large_tensors_go_to_a_gpu_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, str, Any]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        calls.append((tensor.nbytes, "pinned", None))
        return tensor

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        calls.append((tensor.nbytes, device.type, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    small, large = (torch.zeros(size, dtype=torch.uint8) for size in (STAGED, STAGED + 1))
    sent(small, GPU), sent(large, GPU), sent(large, CPU)
    assert calls == [
        (STAGED, "cuda", True),
        (STAGED + 1, "pinned", None),
        (STAGED + 1, "cuda", True),
        (STAGED + 1, "cpu", False),
    ]


@pytest.mark.parametrize(("device", "order"), [(CPU, "aAbBcC"), (GPU, "abAcBC")])
def test_results_are_read_while_a_gpu_has_more_to_do(device: torch.device, order: str) -> None:
    """A small letter: begun; a capital: read."""
    events: list[str] = []

    def works() -> Any:
        for name in "abc":
            events.append(name)
            yield lambda name=name: events.append(name.upper()) or name

    assert list(behind(works(), device)) == ["a", "b", "c"]
    assert "".join(events) == order
    assert list(behind([], device)) == []


APPLE = torch.device("mps")


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch answers on a Mac with its own processor."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for name, answer in (("recommended_max_memory", 9), ("driver_allocated_memory", 4)):
        monkeypatch.setattr(torch.mps, name, lambda answer=answer: answer)


@pytest.mark.usefixtures("apple")
def test_apples_gpu_is_chosen_where_there_is_one() -> None:
    assert choose("auto") == choose("mps") == APPLE
    assert choose("cpu") == CPU
    assert described(APPLE) == "mps (Apple's GPU)"
    assert (free_memory(APPLE), peak_memory(APPLE)) == (5, 4)
    assert choose_device("auto", World(0, 2, 0, 2)) == CPU
    with pytest.raises(DeviceError, match="one GPU, for one process: use --device cpu"):
        choose_device("mps", World(0, 2, 0, 2))
    with pytest.raises(DeviceError, match=r"'mps:1' is missing"):
        choose("mps:1")


def test_a_device_that_is_missing_is_refused_in_one_line() -> None:
    assert choose("auto") == CPU
    with pytest.raises(DeviceError, match=r"^device 'mps' is missing: .*; use --device cpu$"):
        choose("mps")
    with pytest.raises(DeviceError, match="choose auto, cpu, cuda, cuda:N or mps"):
        choose("meta")


@pytest.mark.usefixtures("apple")
def test_apples_gpu_waits_and_copies_as_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.mps, name, lambda name=name: calls.append(name))
    synchronize(APPLE), restart_peak(APPLE)
    monkeypatch.setattr(torch.Tensor, "to", lambda _, *to, **how: calls.append((to, how)))
    sent(torch.zeros(1), APPLE), exact(torch.zeros(1))
    assert calls == [
        "synchronize",
        "empty_cache",
        ((APPLE,), {"non_blocking": False}),
        ((CPU, torch.float64), {}),
    ]
    assert (with_float64(APPLE), widest(APPLE), widest(CPU)) == (CPU, torch.float32, torch.float64)
