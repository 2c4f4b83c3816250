"""One number for each patch: against NumPy on the tokens that the model gives out."""

from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from vitlab.errors import OptionError

IMAGES = torch.randn(2, 3, 24, 32, generator=torch.Generator().manual_seed(3))


def model_of(name: str = "ViT(width=16,depth=2,heads=2,mlp=16)/8", **choices: Any) -> Any:
    torch.manual_seed(0)
    return vitlab.create(name, 3, (24, 32), **choices).eval()


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
    norms = vitlab.inspect.norm_map(model, IMAGES, layer=1)
    assert norms.numpy() == pytest.approx(
        np.linalg.norm(first[:, prefix:], axis=-1).reshape(2, 3, 4), rel=1e-5
    )
    whole = vitlab.inspect.token_norms(model, IMAGES)[:, 2, prefix:].unflatten(1, (3, 4))
    torch.testing.assert_close(vitlab.inspect.norm_map(model, IMAGES), whole)


def test_the_places_of_a_resnets_map_are_its_patches() -> None:
    model = model_of("BiT-R(1-1)x1")
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
