"""Positions in a graph follow the grid of the images as the model's own do."""

from typing import Any, get_args

import pytest
import torch

import vitlab
from vitlab.graphs.any_size import fixed, matrices
from vitlab.graphs.complete import traceable
from vitlab.models.configs.vit_config import Resampling
from vitlab.models.positions.resampling import resample

TINY = "ViT(width=16,depth=2,heads=2,mlp=16)/8"


@pytest.mark.parametrize("resampling", get_args(Resampling))
def test_matrices_resample_as_the_models_do(resampling: Resampling) -> None:
    generator = torch.Generator().manual_seed(0)
    for old in ((4, 4), (7, 7)):
        table = torch.randn(1, 1 + old[0] * old[1], 6, generator=generator)
        for new in (old, (5, 9), (14, 3), (1, 6), (20, 20), (7, 4)):
            want = resample(table, old, new, resampling)[:, 1:]
            rows, columns = matrices(old, new, resampling)
            square = table[:, 1:].unflatten(1, old)
            found = torch.einsum("ri,cj,bijd->brcd", rows, columns, square).flatten(1, 2)
            torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "choices",
    [
        {"positions": "none", "pool": "mean"},
        {"positions": "1d", "positions_at": "every", "registers": 2},
        {"positions": "2d", "resampling": "bicubic"},
        {"positions": "rope", "rope_kind": "image"},
        {"positions": "rope", "rope_kind": "mixed"},
        {"positions": "1d+rope", "rope_kind": "grid", "rope_grid": 3, "rope_offset": 1.0},
        {"stem": "local", "width": 32},
        {"attention": "axial", "pool": "mean"},
    ],
    ids=str,
)
def test_forms_for_any_size_compute_what_the_model_does(choices: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create(TINY, 3, 32, generator=generator, zero_head=False, **choices).eval()
    form = traceable(model, bare=True, any_size=True)
    assert form.free == {0: "batch", 2: "8*rows", 3: "8*columns"}
    for size in ((32, 32), (48, 24), (8, 80)):
        images = torch.randn(2, 3, *size, generator=generator)
        with torch.no_grad():
            found, want = form.module(images), model(images)
        torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "choices", "reason"),
    [
        (TINY, {"positions": "relative"}, "positions=relative"),
        (TINY, {"positions": "1d+bias"}, "positions=1d+bias"),
        ("Axial-ResNet-26", {}, "attention=axial"),
        ("R+" + TINY, {}, "stem=resnet"),
        (TINY, {}, ""),
        ("BiT-R(1)x1", {}, ""),
    ],
)
def test_what_fixes_the_size(name: str, choices: dict[str, Any], reason: str) -> None:
    with torch.device("meta"):
        model = vitlab.create(name, 3, 32, **choices)
    assert fixed(model) == reason
