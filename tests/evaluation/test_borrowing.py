"""A model is used without being changed."""

import pytest
import torch
from torch import nn

from vitlab.evaluation.compute import borrowed
from vitlab.measure.speed import speed
from vitlab.models.create import create


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


def test_an_error_changes_nothing() -> None:
    model = nn.Linear(2, 2).train()
    with pytest.raises(ZeroDivisionError), borrowed(model, torch.device("cpu")):
        assert not model.training
        raise ZeroDivisionError
    assert model.training
    assert not model.weight.is_inference()


def test_timing_a_model_leaves_it_in_training() -> None:
    model = create("ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=3, image_size=8).train()
    speed(model, seconds=0)
    assert all(module.training for module in model.modules())
