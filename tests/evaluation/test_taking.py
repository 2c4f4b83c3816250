"""What is taken of a model: against the model's own parts, and transformers' hidden states."""

import numpy as np
import pytest
import torch

import vitlab
from evaluation.small_models import noisy
from vitlab.errors import OptionError
from vitlab.evaluation.infer import shape_taken, take
from vitlab.evaluation.probes.feature_options import Pooled, Taken

SHAPES = [
    ("ViT(width=16,depth=3,heads=2,mlp=32)/4", {"registers": 2}),
    ("ViT(width=16,depth=3,heads=2,mlp=32)/4", {"pool": "mean", "positions": "rope"}),
    ("ViT(width=16,depth=2,heads=2,mlp=32)/4", {"attention": "axial", "pool": "mean"}),
    ("ViT(width=16,depth=2,heads=2,mlp=32)/4", {"pool": "attention", "queries": 3}),
    ("BiT-R(1-1)x1", {}),
    ("Axial-ResNet-(1)", {}),
]


def model(name: str, **choices: object) -> vitlab.VisionTransformer:
    return noisy(name, 0.2, classes=0, image_size=16, **choices)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "choices"), SHAPES)
def test_each_kind_has_the_shape_that_is_announced(
    name: str, choices: dict[str, object], images: torch.Tensor
) -> None:
    made = model(name, **choices)
    prefix = getattr(made.config, "prefix", 0)
    with torch.inference_mode():
        tokens = made.encode(images)
        token, mean = tokens[:, 0], tokens[:, prefix:].mean(1)
        expected = {
            "features": made.features(images).flatten(1), "mean": mean, "token": token,
            "both": torch.cat([token, mean], 1), "patches": tokens[:, prefix:], "tokens": tokens,
        }  # fmt: skip
        if not getattr(made.config, "has_token", False):
            del expected["token"], expected["both"]
        for what, values in expected.items():
            found = take(made, images, Taken(what=what))  # type: ignore[arg-type]
            assert found.shape[1:] == shape_taken(made, Taken(what=what))  # type: ignore[arg-type]
            torch.testing.assert_close(found, values)
    assert tokens.shape[1] - prefix == np.prod(made.config.grid)


@pytest.mark.parametrize(("name", "choices"), SHAPES)
def test_layers_lead_from_the_input_of_the_blocks_to_their_output(
    name: str, choices: dict[str, object], images: torch.Tensor
) -> None:
    made = model(name, **choices)
    last = len(made.blocks) if hasattr(made, "blocks") else len(made.body.stages)
    body = getattr(made, "body", None)
    if body is None:
        norm = made.norm
    else:
        norm = (
            (lambda maps: body.norm(maps).relu()) if hasattr(body, "norm") else torch.nn.Identity()
        )
    with torch.inference_mode():
        tokens = norm(made.intermediates(images, [last])[0])
        if tokens.ndim == 4:
            tokens = tokens.flatten(2).transpose(1, 2)
        torch.testing.assert_close(tokens, made.encode(images))
        several = made.intermediates(images, [last, 0, last])
        assert torch.equal(several[0], several[2])
        assert not torch.equal(several[0].flatten()[:99], several[1].flatten()[:99])
        shape = shape_taken(made, Pooled(what="mean", layer=0))
        first = made.intermediates(images, [0])[0]
        patches = first[:, getattr(made.config, "prefix", 0) :]
        mean = first.mean((2, 3)) if first.ndim == 4 else patches.mean(1)
        assert mean.shape == (5, *shape)
        torch.testing.assert_close(take(made, images, Pooled(what="mean", layer=0)), mean)
    with pytest.raises(OptionError, match=rf"layer {last + 1} of .*: choose from 0 to {last}"):
        take(made, images, Taken(what="tokens", layer=(last + 1,)))


def test_blocks_above_the_layer_are_not_computed(images: torch.Tensor) -> None:
    made = model(SHAPES[0][0])
    made.blocks[2].register_forward_hook(lambda *_: 1 / 0)
    take(made, images, Taken(what="tokens", layer=(2,)))
    with pytest.raises(ZeroDivisionError):
        take(made, images, Taken(what="tokens", layer=(3,)))
