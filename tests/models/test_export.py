"""`torch.export` of every kind of model, for any number of images."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import vitlab
from vitlab.models.model import Model

TINY = "ViT(width=16,depth=1,heads=2,mlp=16)/8"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (TINY, {}),
    "rope": (TINY, {"positions": "rope", "registers": 2}),
    "relative": (TINY, {"positions": "relative", "pool": "attention"}),
    "axial": (f"Axial-{TINY}", {}),
    "hybrid": ("R(1)+ViT(width=16,depth=1,heads=2,mlp=16)/4", {}),
    "resnet": ("BiT-R(1)x1", {}),
}
FUSED = ("plain", "hybrid")


class Inside(nn.Module):
    """A module that returns a model's answers, and what leaves its layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> list[Tensor]:
        (dense,) = self.model.intermediates(images, [-1], norm=True, maps=True)
        plain = self.model.intermediates(images, [0, -1])
        return [self.model(images), *plain, dense.map, dense.prefix]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.export's own imports
@pytest.mark.parametrize(
    ("case", "fused"),
    [(case, case in FUSED) for case in CASES]
    + [pytest.param(e, e not in FUSED, marks=pytest.mark.campaign) for e in CASES],
)
def test_a_graph_takes_any_number_of_images(case: str, fused: bool) -> None:
    name, choices = CASES[case]
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(name, 3, 32, generator=generator, **choices).eval()
    form = Inside(vitlab.fuse(model) if fused else model)
    with torch.no_grad():
        graph = export(form, (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: Dim("b")},))
        run = graph.module()
        for images in (torch.randn(count, 3, 32, 32) for count in (1, 5)):
            for got, want in zip(run(images), Inside(model)(images), strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
