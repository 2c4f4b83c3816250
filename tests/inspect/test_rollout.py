"""Rollout against the papers' own loop, written out, for every way to pool."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vitlab
from vitlab.errors import OptionError

POOLS: dict[str, dict[str, Any]] = {
    "class token": {"pool": "token"},
    "class token and registers": {"pool": "token", "registers": 3},
    "mean": {"pool": "mean"},
    "mean beside a class token": {"pool": "mean", "class_token": True, "registers": 2},
    "both": {"pool": "both", "registers": 2},
    "prefix": {"pool": "prefix", "registers": 2},
    "attention": {"pool": "attention", "registers": 1},
    "two queries": {"pool": "attention", "queries": 2, "class_token": True},
    "parallel branches": {"branches": 2},
    "three branches, mean": {"branches": 3, "pool": "mean", "registers": 1},
}


def shares(model: Any, tokens: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """How much of each token of one image is pooled."""
    chosen, count = POOLS[name], len(tokens)
    pool, prefix = chosen.get("pool", "token"), model.config.prefix
    result, patches = np.zeros(count), count - prefix
    if pool == "token":
        result[0] = 1
    elif pool == "prefix":
        result[:prefix] = 1 / prefix
    elif pool == "mean":
        result[prefix:] = 1 / patches
    elif pool == "both":
        result[0] = 0.5
        result[prefix:] = 0.5 / patches
    else:
        attend = model.head.attend
        q = attend.queries[0].double() @ attend.q.weight.double().T + attend.q.bias.double()
        both = torch.from_numpy(tokens) @ attend.kv.weight.double().T + attend.kv.bias.double()
        keys, size = both[:, : both.shape[1] // 2].numpy(), both.shape[1] // 2 // attend.heads
        for query in q.numpy():
            for head in range(attend.heads):
                part = slice(head * size, (head + 1) * size)
                score = np.exp(keys[prefix:, part] @ query[part] / np.sqrt(size))
                result[prefix:] += score / score.sum() / attend.heads / len(q)
    return result


@pytest.mark.parametrize("name", POOLS)
def test_rollout_is_the_product_of_the_layers(name: str) -> None:
    choices = {"depth": 3} | POOLS[name]
    model: Any = vitlab.create("ViT-Ti/8", 5, (24, 32), **choices).train()
    images = torch.randn(3, 3, 24, 32)
    got = vitlab.inspect.rollout(model, images)
    assert got.shape == (3, 3, 4)
    assert model.training
    model.eval()
    with torch.inference_mode():
        maps = [each.double().numpy() for each in model.attention_maps(images)]
        encoded = model.encode(images).double().numpy()
        heads, prefix = model.config.heads, model.config.prefix
        for image in range(3):
            flow = np.eye(maps[0].shape[-1])
            for weights in maps:
                mixed = np.eye(len(flow))
                for first in range(0, len(weights[image]), heads):
                    mixed = mixed + weights[image][first : first + heads].mean(0)
                flow = (mixed / mixed.sum(-1, keepdims=True)) @ flow
            assert np.allclose(flow.sum(-1), 1)
            pooled = shares(model, encoded[image], name)
            assert pooled.sum() == pytest.approx(1)
            rows = (pooled @ flow)[prefix:]
            np.testing.assert_allclose(got[image].flatten().numpy(), rows, atol=1e-6)


def test_it_can_stop_at_a_layer() -> None:
    model: Any = vitlab.create("ViT(width=16,depth=3,heads=2,mlp=16)/8", 2, (24, 32)).eval()
    images = torch.randn(2, 3, 24, 32)
    maps = model.attention_maps(images)
    flow = torch.eye(13)
    for layer, weights in enumerate(maps, 1):
        flow = (weights.mean(1) + torch.eye(13)) / 2 @ flow
        found = vitlab.inspect.rollout(model, images, layer=layer)
        torch.testing.assert_close(found.flatten(1), flow[:, 0, 1:])
    torch.testing.assert_close(vitlab.inspect.rollout(model, images), found)
    with pytest.raises(OptionError, match="layer must be from 1 to 3, not 4"):
        vitlab.inspect.rollout(model, images, layer=4)


def test_late_attention_begins_three_layers_before_the_end() -> None:
    model: Any = vitlab.create("ViT(width=16,depth=5,heads=2,mlp=16)/8", 2, (24, 32)).eval()
    images = torch.randn(2, 3, 24, 32)
    flow = torch.eye(13)
    for weights in model.attention_maps(images)[2:]:
        flow = (weights.mean(1) + torch.eye(13)) / 2 @ flow
    found = vitlab.inspect.late_attention(model, images)
    torch.testing.assert_close(found.flatten(1), flow[:, 0, 1:])
    shallow = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=16)/8", 2, (24, 32)).eval()
    whole = vitlab.inspect.rollout(shallow, images)
    assert torch.equal(vitlab.inspect.late_attention(shallow, images), whole)
    with pytest.raises(OptionError, match="first must be from 1 to 2, not 3"):
        vitlab.inspect.rollout(model, images, layer=2, first=3)


def test_half_precision_loses_nothing_of_an_even_share() -> None:
    model: Any = vitlab.create("ViT(width=16,depth=1,heads=1,mlp=16)/8", 2, (24, 56), pool="mean")
    with torch.no_grad():
        model.blocks[0].attention[0].body.qkv.weight.zero_()
    found = vitlab.inspect.rollout(model.bfloat16(), torch.randn(1, 3, 24, 56))
    torch.testing.assert_close(found, torch.full((1, 3, 7), 1 / 21), rtol=1e-3, atol=0)


def test_a_resnet_has_none() -> None:
    model = vitlab.create("BiT-R(1-1)x1", 3, 32)
    with pytest.raises(OptionError, match="has no attention maps: use a Vision Transformer"):
        vitlab.inspect.rollout(model, torch.randn(1, 3, 32, 32))
