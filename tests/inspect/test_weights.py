"""Weights: filters, positions and receptive fields, against scikit-learn, NumPy and gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

import vitlab
from vitlab.errors import OptionError

SMALL = "ViT(width=48,depth=2,heads=2,mlp=16)/4"
RESNET = "BiT-R(1-1)x1"
WIDTH = "ViT(width=32,depth=1,heads=2,mlp=16)/8"


def small(name: str = SMALL, size: Any = 16, **choices: Any) -> Any:
    torch.manual_seed(0)
    return vitlab.create(name, 3, size, zero_head=False, **choices)


def test_filters_are_scikit_learns_components() -> None:
    model = small()
    found = vitlab.inspect.embedding_filters(model, 5)
    assert found.shape == (5, 4, 4, 3)
    kernel = model.stem.layers[0].weight.detach().permute(0, 2, 3, 1).flatten(1).numpy()
    want = PCA(5, svd_solver="full").fit(kernel.astype(np.float64)).components_
    cosines = np.abs((found.flatten(1).double().numpy() * want).sum(1))
    assert cosines == pytest.approx(1, abs=1e-5)
    assert found.flatten(1).norm(dim=1).numpy() == pytest.approx(1, abs=1e-5)
    assert (found.flatten(1).amax(1) >= -found.flatten(1).amin(1)).all()


def test_filters_that_cannot_be_taken_apart() -> None:
    model = small()
    for count in (0, 49):
        with pytest.raises(OptionError, match=f"count must be from 1 to .*, not {count}"):
            vitlab.inspect.embedding_filters(model, count)
    with torch.no_grad():
        model.stem.layers[0].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(OptionError, match=r"the first filters of .* are not finite"):
        vitlab.inspect.embedding_filters(model, 5)


@pytest.mark.parametrize(
    ("name", "choices", "shape"),
    [
        (SMALL, {"stem": "hmlp", "patch": 16, "size": 32}, (4, 4)),
        (SMALL, {"stem": "resnet", "stages": (1, 1), "patch": 16, "size": 32}, (7, 7)),
        ("BiT-R(1-1)x1", {"size": 32}, (7, 7)),
    ],
)
def test_other_first_layers_show_their_first_convolution(
    name: str, choices: dict[str, Any], shape: tuple[int, int]
) -> None:
    found = vitlab.inspect.embedding_filters(small(name, **choices), 4)
    assert found.shape == (4, *shape, 3)


def test_filters_of_resnets_are_the_standardized_ones() -> None:
    model = small(RESNET, 32)
    kernel = model.body.root.weight.detach()
    raw = kernel.flatten(1).double().numpy()
    flat = (raw - raw.mean(1, keepdims=True)) / raw.std(1, keepdims=True)
    want = PCA(3, svd_solver="full").fit(flat).components_.reshape(3, 3, 7, 7)
    for each in (model, vitlab.fuse(model)):
        found = vitlab.inspect.embedding_filters(each, 3).double().numpy().transpose(0, 3, 1, 2)
        assert np.abs((found * want).sum((1, 2, 3))) == pytest.approx(1, abs=1e-4)


def test_similarity_of_positions_is_their_cosine() -> None:
    model = small(size=(8, 12), registers=2)
    found = vitlab.inspect.position_similarity(model)
    assert found.shape == (2, 3, 2, 3)
    table = model.positions[0].table.detach()[0, 1:].double().numpy()
    for one in range(6):
        for other in range(6):
            a, b = table[one], table[other]
            cosine = a @ b / np.sqrt((a @ a) * (b @ b))
            got = found[one // 3, one % 3, other // 3, other % 3]
            assert got == pytest.approx(cosine, abs=1e-6)


def test_positions_of_rows_and_columns_share_half_with_their_neighbors() -> None:
    found = vitlab.inspect.position_similarity(small(positions="2d"))
    apart = found[0, 0, 1, 1].abs()
    assert found[0, 0, 0, 3] > 0.3 > apart
    assert found[0, 0, 3, 0] > 0.3 > apart


def test_positions_of_every_block_and_those_beside_others() -> None:
    model = small(positions_at="every")
    one, other = (vitlab.inspect.position_similarity(model, table) for table in (0, 1))
    assert not torch.equal(one, other)
    with pytest.raises(OptionError, match="table must be from 0 to 1, not 2"):
        vitlab.inspect.position_similarity(model, 2)
    found = vitlab.inspect.position_similarity(small(positions="1d+rope"))
    assert found.diagonal(dim1=0, dim2=2).shape == (4, 4, 4)


@pytest.mark.parametrize("positions", ["none", "rope", "relative"])
def test_positions_that_are_not_added_are_refused(positions: str) -> None:
    with pytest.raises(OptionError, match=f"adds no positions .*positions={positions}"):
        vitlab.inspect.position_similarity(small(positions=positions))


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
