"""Distance and entropy of heads: cases known on paper, and transformers' own attention."""

import math
from typing import Any

import pytest
import torch

import vitlab


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


def test_batches_one_after_the_other_are_as_good_as_one() -> None:
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=16)/8", 2, 32)
    images = torch.randn(10, 3, 32, 32)

    def batches() -> Any:
        yield images[:4]
        yield images[4:]

    whole = vitlab.inspect.attention_distance(model, images)
    torch.testing.assert_close(vitlab.inspect.attention_distance(model, batches()), whole)
