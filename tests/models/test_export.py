"""`torch.export` of every kind of model, for any number of images."""

from typing import Any

import pytest
import torch
from torch.export import Dim, export

import vitlab

TINY = "ViT(width=16,depth=1,heads=2,mlp=16)/8"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (TINY, {}),
    "rope": (TINY, {"positions": "rope", "registers": 2}),
    "relative": (TINY, {"positions": "relative", "pool": "attention"}),
    "axial": ("Axial-ViT(width=16,depth=1,heads=2,mlp=16)/8", {}),
    "hybrid": ("R(1)+ViT(width=16,depth=1,heads=2,mlp=16)/4", {}),
    "resnet": ("BiT-R(1)x1", {}),
}
FUSED_OTHERWISE = ("plain", "hybrid")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.export's own imports
@pytest.mark.parametrize(
    ("case", "fused"),
    [(case, False) for case in CASES]
    + [
        pytest.param(e, True, marks=[] if e in FUSED_OTHERWISE else pytest.mark.campaign)
        for e in CASES
    ],
)
def test_a_graph_takes_any_number_of_images(case: str, fused: bool) -> None:
    name, choices = CASES[case]
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(name, 3, 32, generator=generator, **choices).eval()
    form = vitlab.fuse(model) if fused else model
    with torch.no_grad():
        graph = export(form, (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: Dim("b")},))
        assert isinstance(graph.module(), torch.fx.GraphModule)
        for images in (torch.randn(count, 3, 32, 32) for count in (1, 5)):
            torch.testing.assert_close(graph.module()(images), model(images), rtol=0, atol=1e-5)
