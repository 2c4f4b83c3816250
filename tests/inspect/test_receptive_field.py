"""Receptive fields: the pixels that a token's gradient reaches, and figures known on paper."""

from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from vitlab.errors import OptionError

WIDTH = "ViT(width=32,depth=1,heads=2,mlp=16)/8"


def reached(model: Any, side: int) -> int:
    """How wide the square is whose pixels change the middle token, without the norms of maps."""
    for name, part in list(model.named_modules()):
        if isinstance(part, nn.GroupNorm):
            model.set_submodule(name, nn.Identity())
    hit = torch.zeros(side, side)
    resnet = model.config.kind == "resnet"
    for seed in range(4):
        images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(seed))
        images = images.double().requires_grad_()
        tokens = model.body(images) if resnet else model.stem(images).transpose(1, 2)[..., None]
        tokens = tokens.flatten(2)
        side_of_grid = round(tokens.shape[-1] ** 0.5)
        middle = (side_of_grid // 2) * (side_of_grid + 1)
        tokens[..., middle].square().sum().backward()
        hit += images.grad.abs().sum((0, 1))
    rows, columns = hit.nonzero(as_tuple=True)
    assert rows.max() - rows.min() == columns.max() - columns.min()
    return int(rows.max() - rows.min()) + 1


@pytest.mark.parametrize(
    ("name", "choices", "field"),
    [
        (WIDTH, {}, 8),
        (WIDTH, {"stem": "hmlp", "stem_norm": "layer"}, 8),
        (WIDTH, {"stem": "conv", "stem_norm": "layer"}, 15),
        (WIDTH, {"stem": "local"}, 13),
        (WIDTH, {"stem": "resnet", "stages": (1,)}, 23),
        ("BiT-R(1-1)x1", {}, 27),
    ],
)
def test_it_is_what_the_gradient_reaches(name: str, choices: dict[str, Any], field: int) -> None:
    torch.manual_seed(0)
    model = vitlab.create(name, 2, 64, **choices).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    assert vitlab.inspect.receptive_field(model) == field
    assert reached(model, 64) == field


def test_known_figures() -> None:
    with torch.device("meta"):
        found = {
            name: vitlab.inspect.receptive_field(vitlab.create(name, 0))
            for name in ("BiT-R50x1", "R50+ViT-B/16", "ViT-B/32")
        }
        assert found == {"BiT-R50x1": 427, "R50+ViT-B/16": 363, "ViT-B/32": 32}
        with pytest.raises(OptionError, match="sees the whole image"):
            vitlab.inspect.receptive_field(vitlab.create("Axial-ResNet-50", 0, 32))
