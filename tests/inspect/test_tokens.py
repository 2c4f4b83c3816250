"""Tokens: against NumPy and scikit-learn on those that the model gives out."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

import vitlab
from vitlab.errors import OptionError
from vitlab.inspect.tokens import colors_of

IMAGES = torch.randn(2, 3, 24, 32, generator=torch.Generator().manual_seed(3))
SMALL, RESNET = "ViT(width=48,depth=2,heads=2,mlp=16)/4", "BiT-R(1-1)x1"


def model_of(
    name: str = "ViT(width=16,depth=2,heads=2,mlp=16)/8", size: Any = (24, 32), **choices: Any
) -> Any:
    torch.manual_seed(0)
    return vitlab.create(name, 3, size, zero_head=False, **choices).eval()


@pytest.mark.parametrize(("choices", "prefix"), [({"registers": 2}, 3), ({"pool": "attention"}, 0)])
def test_similarity_is_the_cosine_of_two_tokens(choices: dict[str, Any], prefix: int) -> None:
    model = model_of(**choices)
    with torch.inference_mode():
        last, first = (
            each.double().numpy()
            for each in (model.encode(IMAGES), model.intermediates(IMAGES, [1])[0])
        )
    for tokens, layer in ((last, None), (first, 1)):
        for token in (0, prefix + 7):
            found = vitlab.inspect.similar_patches(model, IMAGES, token, layer=layer)
            assert found.shape == (2, 3, 4)
            one, other = tokens[1, token], tokens[1, prefix + 4 * 2 + 3]
            cosine = one @ other / np.sqrt(one @ one * (other @ other))
            assert found[1, 2, 3] == pytest.approx(cosine, abs=1e-5)
    own = vitlab.inspect.similar_patches(model, IMAGES, prefix + 6)
    assert own[:, 1, 2].numpy() == pytest.approx(1, abs=1e-6)
    with pytest.raises(OptionError, match=rf"token must be from 0 to {prefix + 11}, not -1"):
        vitlab.inspect.similar_patches(model, IMAGES, -1)
    lengths, norms = np.linalg.norm(first, axis=-1), vitlab.inspect.token_norms(model, IMAGES)
    assert norms.shape == (2, 3, prefix + 12)
    assert norms[:, 1].numpy() == pytest.approx(lengths, rel=1e-5)
    for layer, number in ((1, 1), (None, 2)):
        shown = norms[:, number, prefix:].unflatten(1, (3, 4))
        torch.testing.assert_close(vitlab.inspect.norm_map(model, IMAGES, layer=layer), shown)
    unit = (first / lengths[..., None])[1, prefix:]
    cosines = (unit @ unit.T)[~np.eye(12, dtype=bool)]
    alike = vitlab.inspect.token_similarity(model, IMAGES)
    assert alike[1, 1] == pytest.approx(cosines.mean(), abs=1e-6)


def test_the_places_of_a_resnets_map_are_its_patches() -> None:
    model = model_of(RESNET)
    with torch.inference_mode():
        maps = model.intermediates(IMAGES, [0, 1, 2])
    for layer, (rows, columns) in enumerate([(6, 8), (6, 8), (3, 4)]):
        norms = vitlab.inspect.norm_map(model, IMAGES, layer=layer)
        assert norms.shape == (2, rows, columns)
        torch.testing.assert_close(norms, maps[layer].norm(dim=1))
        alike = vitlab.inspect.similar_patches(model, IMAGES, columns + 2, layer=layer)
        cosine = torch.cosine_similarity(maps[layer], maps[layer][:, :, 1:2, 2:3], dim=1)
        torch.testing.assert_close(alike, cosine, rtol=0, atol=1e-5)
    spread = vitlab.inspect.token_similarity(model, IMAGES)
    assert spread.shape == (2, 3)
    last = torch.nn.functional.normalize(maps[2][0].flatten(1), dim=0)
    cosines = (last.T @ last)[~torch.eye(12, dtype=torch.bool)]
    assert spread[0, 2] == pytest.approx(cosines.mean().item(), abs=1e-5)
    with pytest.raises(OptionError, match=r"vitlab\.inspect\.norm_map shows one of them"):
        vitlab.inspect.token_norms(model, IMAGES)


def test_one_patch_alone_is_like_no_other() -> None:
    model = model_of().resize(8)
    assert vitlab.inspect.token_similarity(model, IMAGES[:, :, :8, :8]).isnan().all()
    assert vitlab.inspect.norm_map(model, IMAGES[:, :, :8, :8]).shape == (2, 1, 1)


def test_colors_are_the_first_three_components_of_all_images_together() -> None:
    model, images = model_of(SMALL, 16), torch.randn(3, 3, 16, 24)
    colors = vitlab.inspect.feature_colors(model, images)
    assert colors.shape == (3, 4, 6, 3)
    assert 0 == colors.min() < colors.max() == 1
    with torch.inference_mode():
        flat = model.encode(images)[:, 1:].flatten(0, 1).double().numpy()
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
        vitlab.inspect.feature_colors(model.resize(8), torch.randn(1, 3, 8, 8), first=2)
    low, high = (np.quantile(want[:, 0], share) for share in (0.01, 0.99))
    shown = np.clip((want[:, 0] - low) / (high - low), 0, 1)
    got = colors.flatten(0, 2)[:, 0].numpy()
    assert min(np.abs(got - shown).max(), np.abs(1 - got - shown).max()) < 1e-4


def test_features_without_colors_are_named() -> None:
    with pytest.raises(OptionError, match="contain numbers that are not finite"):
        colors_of([torch.full((1, 5, 2, 2), float("nan"))])
    with pytest.raises(OptionError, match="no images: give at least one"):
        colors_of([])
    with pytest.raises(OptionError, match="need at least 5 patches and channels: there are 4 and"):
        colors_of([torch.ones(1, 5, 2, 2)], first=2)


def test_images_of_different_sizes_share_their_colors() -> None:
    model = model_of(SMALL, 16, positions="none", class_token=False, pool="mean")
    image = torch.randn(1, 3, 16, 16)
    wide = torch.cat([image, image], 3)
    one, two = vitlab.inspect.feature_colors(model, [image, wide], layer=0)
    assert two.shape == (1, 4, 8, 3)
    torch.testing.assert_close(two, torch.cat([one, one], 2))
    assert vitlab.inspect.feature_colors(model_of(RESNET, 32), wide).shape == (1, 2, 4, 3)
