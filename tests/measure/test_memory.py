"""Memory of each model by itself, and of each run, whatever came before."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitlab
from conftest import BRIEF, TINY
from vitlab import device as devices
from vitlab.measure.allocated import Allocated, peak_bytes
from vitlab.measure.summary import measure
from vitlab.recipes.recipe import Host

SMALL, LARGE = "ViT(width=16,depth=2,heads=2,mlp=32)/8", "ViT(width=192,depth=3,heads=4,mlp=768)/8"
CPU = torch.device("cpu")


def peak(name: str, **choices: Any) -> int:
    figures = measure(
        name, timed=True, image_size=32, classes=3, device="cpu", seconds=0.2, **choices
    )
    return int(figures["peak_memory"])


def test_a_small_model_after_a_large_one_has_its_own_figure() -> None:
    alone = peak(SMALL)
    large = peak(LARGE)
    assert peak(SMALL) == alone
    assert large > 20 * alone
    assert peak(SMALL, batch=8) > 4 * (alone - 4 * vitlab.measure.cost(vitlab.create(SMALL)).params)
    params = sum(w.numel() for w in vitlab.create(LARGE, 3, 32).parameters())
    assert 4 * params < large < 4 * params + 2**20  # activations of 17 tokens


class Layers(nn.Module):
    """Three layers whose results are counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(100, 1000), nn.Linear(1000, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.first(images).relu())


def test_what_is_alive_at_once_is_counted_by_hand() -> None:
    weights = 4 * (100 * 1000 + 1000 + 1000 * 10 + 10)
    images, layers = torch.randn(7, 100), Layers()
    with torch.inference_mode():
        found = peak_bytes(lambda: layers(images), [*layers.parameters(), images])
    # the first layer's result and its ReLU: 7 x 1000 each
    assert found == weights + 4 * 7 * 100 + 2 * 4 * 7 * 1000
    with torch.inference_mode(), Allocated() as allocated:
        one = torch.zeros(1000)
        view = one.view(10, 100)[2:]
        del one
        assert allocated.now == 4000
        del view
        assert (allocated.now, allocated.peak) == (0, 4000)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux")
def test_the_peak_of_a_run_is_not_that_of_what_came_before(tmp_path: Path) -> None:
    large = np.ones(2**28, np.uint8)
    before = devices.peak_memory(CPU)
    assert before > 2**28
    del large
    recipe = vitlab.recipe("digits", **TINY | {"steps": 1, "batch": 8})
    run = vitlab.train(
        recipe, tmp_path / "run", host=Host(workers=0, check_duplicates="no", effort=BRIEF)
    )
    assert run.metrics["peak_memory"] < before - 2**27
    filled = np.ones(2**27, np.uint8)
    devices.restart_peak(CPU)
    assert devices.peak_memory(CPU) > 2**27
    assert filled[-1] == 1
