"""A model is used without being changed."""

import pytest
import torch
from torch import nn

from vitlab.evaluation.compute import borrowed


class Traveler(nn.Linear):
    """Remembers where it was sent."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.sent: list[str] = []

    def to(self, device: torch.device) -> "Traveler":
        """Remember the device; tests have only one to be on."""
        self.sent.append(str(device))
        return self


def test_a_model_returns_to_its_device_and_modes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2)).train()
    model[1].eval()
    with borrowed(model, torch.device("cpu")):
        assert [module.training for module in model.modules()] == [False] * 4
    assert [module.training for module in model.modules()] == [True, True, False, True]
    traveler = Traveler()
    with pytest.raises(ZeroDivisionError), borrowed(traveler, torch.device("meta")):
        assert traveler.sent == ["meta"]
        raise ZeroDivisionError
    assert traveler.sent == ["meta", "cpu"]
