"""Attention: cases known on paper, and the rollout's own loop, written out."""

import math
from typing import Any

import pytest
import torch

import vitlab
from vitlab.errors import OptionError

IMAGES = torch.randn(2, 3, 24, 32, generator=torch.Generator().manual_seed(1))


def blank(**choices: Any) -> Any:
    """A model whose every head looks at all tokens alike: queries and keys are zero."""
    chosen = {"width": 8, "depth": 2, "heads": 2, "mlp": 8, "patch": 16, "image_size": 224}
    model = vitlab.create("ViT-Ti/16", classes=2, **(chosen | choices))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "qkv" in name:
                weight.zero_()
    return model


def mean_distance(rows: int, columns: int, patch: int) -> float:
    """The mean over all pairs of patches, each with itself too, pair by pair."""
    places = [(row, column) for row in range(rows) for column in range(columns)]
    total = sum(math.dist(one, other) for one in places for other in places)
    return patch * total / len(places) ** 2


def test_uniform_attention_looks_the_mean_distance_far() -> None:
    model = blank(pool="mean")
    found = vitlab.inspect.attention_distance(model, torch.randn(1, 3, 224, 224))
    assert found.shape == (2, 2)
    assert found.numpy() == pytest.approx(mean_distance(14, 14, 16), rel=1e-6)
    assert mean_distance(14, 14, 16) == pytest.approx(116.49, abs=0.01)


def test_what_the_class_token_and_registers_get_is_lost_or_shared_out() -> None:
    model, images = blank(registers=2, image_size=(32, 64)), torch.randn(2, 3, 32, 64)
    lost = vitlab.inspect.attention_distance(model, images)
    shared = vitlab.inspect.attention_distance(model, images, among_patches=True)
    assert shared.numpy() == pytest.approx(mean_distance(2, 4, 16), rel=1e-6)
    assert lost.numpy() == pytest.approx(mean_distance(2, 4, 16) * 8 / 11, rel=1e-6)
    entropy = vitlab.inspect.attention_entropy(model, images)
    assert entropy.numpy() == pytest.approx(math.log2(11), rel=1e-6)
    elsewhere = vitlab.inspect.attention_elsewhere(model, images)
    assert elsewhere.numpy() == pytest.approx(3 / 11, rel=1e-6)


@pytest.mark.parametrize("pool", ["token", "mean", "both", "prefix", "prefix-mean"])
def test_the_shares_of_tokens_are_the_gradient_of_the_features(pool: str) -> None:
    head = blank(pool=pool, registers=2, class_token=True, image_size=32, norm_at="none").head
    tokens = torch.randn(1, 7, 8, requires_grad=True)
    features = head.features(tokens)
    features.sum().backward()
    assert tokens.grad is not None
    want = tokens.grad[..., 0] / tokens.grad[..., 0].sum()
    torch.testing.assert_close(head.shares(tokens), want)


def test_batches_one_after_the_other_are_as_good_as_one() -> None:
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=16)/8", 2, 32)
    images = torch.randn(10, 3, 32, 32)

    def batches() -> Any:
        yield images[:4]
        yield images[4:]

    whole = vitlab.inspect.attention_distance(model, images)
    torch.testing.assert_close(vitlab.inspect.attention_distance(model, batches()), whole)


def test_it_can_stop_at_a_layer_and_begin_late() -> None:
    model: Any = vitlab.create("ViT(width=16,depth=5,heads=2,mlp=16)/8", 2, (24, 32)).eval()
    flow, late = torch.eye(13), torch.eye(13)
    for layer, weights in enumerate(model.attention_maps(IMAGES), 1):
        carried = (weights.mean(1) + torch.eye(13)) / 2
        flow, late = carried @ flow, carried @ late if layer > 2 else late
        found = vitlab.inspect.rollout(model, IMAGES, layer=layer)
        torch.testing.assert_close(found.flatten(1), flow[:, 0, 1:])
    torch.testing.assert_close(vitlab.inspect.rollout(model, IMAGES), found)
    found = vitlab.inspect.late_attention(model, IMAGES)
    torch.testing.assert_close(found.flatten(1), late[:, 0, 1:])
    shallow = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=16)/8", 2, (24, 32)).eval()
    whole = vitlab.inspect.rollout(shallow, IMAGES)
    assert torch.equal(vitlab.inspect.late_attention(shallow, IMAGES), whole)
    for how, words in (
        ({"layer": 6}, "layer must be from 1 to 5, not 6"),
        ({"layer": 2, "first": 3}, "first must be from 1 to 2, not 3"),
    ):
        with pytest.raises(OptionError, match=words):
            vitlab.inspect.rollout(model, IMAGES, **how)  # type: ignore[arg-type]


def test_half_precision_loses_nothing_of_an_even_share() -> None:
    model: Any = vitlab.create("ViT(width=16,depth=1,heads=1,mlp=16)/8", 2, (24, 56), pool="mean")
    with torch.no_grad():
        model.blocks[0].attention[0].body.qkv.weight.zero_()
    found = vitlab.inspect.rollout(model.bfloat16(), torch.randn(1, 3, 24, 56))
    torch.testing.assert_close(found, torch.full((1, 3, 7), 1 / 21), rtol=1e-3, atol=0)


def test_class_attention_is_a_row_of_the_maps() -> None:
    model: Any = vitlab.create(
        "ViT(width=16,depth=3,heads=2,mlp=24)/8", 3, (24, 32), registers=1
    ).eval()
    maps = model.attention_maps(IMAGES)
    found = vitlab.inspect.class_attention(model, IMAGES)
    assert found.shape == (2, 2, 3, 4)
    torch.testing.assert_close(found[1, 1, 2, 3], maps[-1][1, 1, 0, 2 + 11])
    first = vitlab.inspect.class_attention(model, IMAGES, 1)
    torch.testing.assert_close(first[0, 0, 0, 0], maps[0][0, 0, 0, 2])
    with pytest.raises(OptionError, match="layer must be from 1 to 3, not 0"):
        vitlab.inspect.class_attention(model, IMAGES, 0)
