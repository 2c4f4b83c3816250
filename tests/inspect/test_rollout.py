"""Rollout against the papers' own loop, written out, for every way to pool."""

from typing import Any

import pytest
import torch

import vitlab
from vitlab.errors import OptionError


def test_it_can_stop_at_a_layer_and_begin_late() -> None:
    model: Any = vitlab.create("ViT(width=16,depth=5,heads=2,mlp=16)/8", 2, (24, 32)).eval()
    images = torch.randn(2, 3, 24, 32)
    flow, late = torch.eye(13), torch.eye(13)
    for layer, weights in enumerate(model.attention_maps(images), 1):
        carried = (weights.mean(1) + torch.eye(13)) / 2
        flow, late = carried @ flow, carried @ late if layer > 2 else late
        found = vitlab.inspect.rollout(model, images, layer=layer)
        torch.testing.assert_close(found.flatten(1), flow[:, 0, 1:])
    torch.testing.assert_close(vitlab.inspect.rollout(model, images), found)
    found = vitlab.inspect.late_attention(model, images)
    torch.testing.assert_close(found.flatten(1), late[:, 0, 1:])
    shallow = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=16)/8", 2, (24, 32)).eval()
    whole = vitlab.inspect.rollout(shallow, images)
    assert torch.equal(vitlab.inspect.late_attention(shallow, images), whole)
    for how, words in (
        ({"layer": 6}, "layer must be from 1 to 5, not 6"),
        ({"layer": 2, "first": 3}, "first must be from 1 to 2, not 3"),
    ):
        with pytest.raises(OptionError, match=words):
            vitlab.inspect.rollout(model, images, **how)  # type: ignore[arg-type]


def test_half_precision_loses_nothing_of_an_even_share() -> None:
    model: Any = vitlab.create("ViT(width=16,depth=1,heads=1,mlp=16)/8", 2, (24, 56), pool="mean")
    with torch.no_grad():
        model.blocks[0].attention[0].body.qkv.weight.zero_()
    found = vitlab.inspect.rollout(model.bfloat16(), torch.randn(1, 3, 24, 56))
    torch.testing.assert_close(found, torch.full((1, 3, 7), 1 / 21), rtol=1e-3, atol=0)
