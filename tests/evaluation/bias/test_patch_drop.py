"""Dropped patches: which pixels they are, what each contributes, and what is left without them."""

import numpy as np
import pytest
import torch

import vitlab
from evaluation.bias.linear_model import Linear, figures, noise, normalized, probed
from vitlab.evaluation.inductive_bias import (
    contributions,
    drop_patches,
    patch_numbers,
)


def test_patches_of_a_size_that_divides_by_numpy() -> None:
    wanted = np.kron(np.arange(64).reshape(8, 8), np.ones((4, 2), np.int64))
    assert (patch_numbers((32, 16)).numpy() == wanted).all()


def test_other_sizes_have_patches_that_differ_by_a_pixel() -> None:
    numbers = patch_numbers((28, 9)).numpy()
    areas = np.bincount(numbers.ravel())
    assert len(areas) == 64
    assert set(areas) == {3, 4, 6, 8}
    assert (patch_numbers((3, 5)).numpy() == np.arange(15).reshape(3, 5)).all()


def test_the_highest_scores_go_first() -> None:
    images = torch.ones(2, 3, 8, 8)
    scores = torch.zeros(2, 64)
    scores[0, 5], scores[0, 63], scores[1, :32] = 2, 1, 1
    seen = drop_patches(images, scores, 1 / 32)
    assert seen.sum((1, 2, 3)).tolist() == [3 * 62, 3 * 62]
    assert seen[0, :, 0, 5].tolist() == seen[0, :, 7, 7].tolist() == [0, 0, 0]
    half = drop_patches(images, scores, 0.5)
    assert half[1, :, :4].abs().sum() == 0
    assert (half[1, :, 4:] == 1).all()
    assert (images == 1).all(), "the images given stay as they are"


def test_contributions_of_a_linear_model_are_exact() -> None:
    """Each is what the logit falls by without the patch."""
    templates = torch.randn(4, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    pixels, model = noise(6, (16, 24), 3), Linear(templates)
    found = contributions(probed(model, pixels, [0] * 6, batch=4)).numpy()
    images = normalized(pixels)
    logits = np.einsum("bchw,kchw->bk", images, templates.numpy())
    own = (images * templates.numpy()[logits.argmax(1)]).sum(1)
    wanted = own.reshape(6, 8, 2, 8, 3).sum((2, 4)).reshape(6, 64)
    assert found == pytest.approx(wanted, abs=1e-4)
    assert found.sum(1) == pytest.approx(logits.max(1), abs=1e-3)
    less = drop_patches(torch.from_numpy(images), torch.from_numpy(found), 0.25).numpy()
    left = np.einsum("bchw,bchw->b", less, templates.numpy()[logits.argmax(1)])
    lost = np.sort(wanted)[:, -16:].sum(1)
    assert left == pytest.approx(logits.max(1) - lost, abs=1e-3)


@pytest.mark.parametrize("name", ["ViT(width=16,depth=2,heads=2,mlp=32)/4", "BiT-R50x1"])
def test_gradients_are_those_of_torch_func(name: str) -> None:
    more = {"stages": (1, 1, 1, 1)} if name.startswith("BiT") else {}
    model = vitlab.create(
        name, classes=5, image_size=16, generator=torch.Generator().manual_seed(0), **more
    ).eval()
    for weight in model.parameters():
        weight.data.add_(0.01)  # a head of zeros would have no gradient
    asked = probed(model, noise(3, (16, 16), 3), [0, 1, 2])
    images = next(asked.batches())[0]
    gradient = torch.func.grad(lambda pixels: model(pixels).amax(-1).sum())(images)
    blocks = (gradient * images).sum(1).detach().reshape(3, 8, 2, 8, 2).sum((2, 4)).flatten(1)
    assert blocks.abs().max() > 1e-4
    assert contributions(asked).numpy() == pytest.approx(blocks.numpy(), abs=1e-5, rel=1e-4)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_model_that_reads_one_patch() -> None:
    """Class 1 where the first patch is bright; what is dropped reads as class 0."""
    templates = torch.zeros(2, 1, 8, 8)
    templates[1, 0, 0, 0], templates[0, 0, 0, 0] = 1, -1
    pixels = np.full((40, 8, 8, 1), 255, np.uint8)
    asked = probed(Linear(templates), pixels, [1] * 40)
    seen = figures(asked, 5, "occluded")
    rank = np.argsort(np.argsort(-np.random.default_rng(5).random((40, 64)), 1), 1)[:, 0]
    for percent, dropped in ((25, 16), (50, 32), (75, 48)):
        assert seen[f"occluded_salient_{percent}"] == 0
        assert seen[f"occluded_nonsalient_{percent}"] == 1
        assert seen[f"occluded_{percent}"] == pytest.approx((rank >= dropped).mean())
    assert len(seen) == 9
    assert seen["occluded_25"] > seen["occluded_50"] > seen["occluded_75"] > 0
