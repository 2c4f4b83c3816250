"""Copies to and from a device that nobody waits for."""

from typing import Any

import pytest
import torch

from vitlab.device import STAGED, behind, fetched, sent

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
        (STAGED + 1, "cpu", True),
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
