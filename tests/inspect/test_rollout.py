"""Rollout against the papers' own loop, written out, for every way to pool."""

from typing import Any

import pytest
import torch

import vitlab
from vitlab.errors import OptionError


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
