"""Filters, positions, tokens and features: against scikit-learn, NumPy and cases made by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

import vitlab
from vitlab.errors import OptionError

SMALL = "ViT(width=48,depth=2,heads=2,mlp=16)/4"
RESNET = "BiT-R(1-1)x1"


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


def test_norms_and_similarity_of_tokens() -> None:
    model, images = small(registers=1), torch.randn(2, 3, 16, 16)
    norms = vitlab.inspect.token_norms(model, images)
    alike = vitlab.inspect.token_similarity(model, images)
    assert norms.shape == (2, 3, 18)
    with torch.inference_mode():
        last = model.eval().intermediates(images, [2])[0].double().numpy()
    assert norms[:, 2].numpy() == pytest.approx(np.sqrt((last**2).sum(-1)), rel=1e-5)
    patches = last[1, 2:]
    unit = patches / np.linalg.norm(patches, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[~np.eye(16, dtype=bool)]
    assert alike[1, 2] == pytest.approx(cosines.mean(), abs=1e-6)


def test_colors_are_the_first_three_components_of_all_images_together() -> None:
    model, images = small(), torch.randn(3, 3, 16, 24)
    colors = vitlab.inspect.feature_colors(model, images)
    assert colors.shape == (3, 4, 6, 3)
    assert 0 == colors.min() < colors.max() == 1
    with torch.inference_mode():
        flat = model.eval().encode(images)[:, 1:].flatten(0, 1).double().numpy()
    want = PCA(4, svd_solver="full").fit_transform(flat)
    inner = (colors.flatten(0, 2) > 0) & (colors.flatten(0, 2) < 1)
    for number in range(3):
        keep = inner[:, number].numpy()
        shown = colors.flatten(0, 2)[:, number].numpy()[keep]
        assert abs(np.corrcoef(shown, want[keep, number])[0, 1]) > 0.99999
    later = vitlab.inspect.feature_colors(model, images, first=1)
    assert abs(np.corrcoef(later[..., 0].flatten(), want[:, 1])[0, 1]) > 0.99
    assert vitlab.inspect.feature_colors(model, images, layer=0).shape == (3, 4, 6, 3)
    one, two = vitlab.inspect.feature_colors(model, [images[:2], images[2:]])
    torch.testing.assert_close(torch.cat([one, two]), colors)
    with pytest.raises(OptionError, match="need at least 5 patches"):
        vitlab.inspect.feature_colors(small(size=8), torch.randn(1, 3, 8, 8), first=2)
    low, high = (np.quantile(want[:, 0], share) for share in (0.01, 0.99))
    shown = np.clip((want[:, 0] - low) / (high - low), 0, 1)
    got = colors.flatten(0, 2)[:, 0].numpy()
    assert min(np.abs(got - shown).max(), np.abs(1 - got - shown).max()) < 1e-4


def test_images_of_different_sizes_share_their_colors() -> None:
    model, image = (
        small(positions="none", class_token=False, pool="mean"),
        torch.randn(1, 3, 16, 16),
    )
    wide = torch.cat([image, image], 3)
    one, two = vitlab.inspect.feature_colors(model, [image, wide], layer=0)
    assert two.shape == (1, 4, 8, 3)
    torch.testing.assert_close(two, torch.cat([one, one], 2))
    assert vitlab.inspect.feature_colors(small(RESNET, 32), wide).shape == (1, 2, 4, 3)
