"""Changed images and the figures on them: tiles, shifts, patches and spectra, by NumPy."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vitlab
from evaluation.bias.linear_model import Linear, figures, noise, normalized, probed
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.inductive_bias import (
    DIRECTIONS,
    contributions,
    cue_figures,
    drop_patches,
    high_pass,
    low_pass,
    partners,
    patch_numbers,
    recombine,
    shape_bias,
    shuffle_tiles,
    tile_orders,
)

Floats = NDArray[np.float64]
SIZES = [(8, 8), (7, 9), (6, 5)]


def shuffled_by_loops(image: Floats, order: NDArray[np.int64], grid: int) -> Floats:
    """One image (channels, H, W), tile by tile."""
    high, wide = image.shape[1] // grid, image.shape[2] // grid
    result = np.empty_like(image)
    for place, (row, column) in enumerate(product(range(grid), repeat=2)):
        r, c = divmod(int(order[place]), grid)
        tile = image[:, r * high : (r + 1) * high, c * wide : (c + 1) * wide]
        result[:, row * high : (row + 1) * high, column * wide : (column + 1) * wide] = tile
    return result


def shifted_by_padding(image: Floats, down: int, right: int) -> Floats:
    """One image (channels, H, W): padded by its reflection, then cut out elsewhere."""
    _, rows, columns = image.shape
    margin = max(abs(down), abs(right))
    wide = np.pad(image, ((0, 0), (margin, margin), (margin, margin)), mode="reflect")
    return wide[:, margin - down :, margin - right :][:, :rows, :columns]


def mixed_by_numpy(phases: Floats, amplitudes: Floats) -> Floats:
    angles, sizes = np.angle(np.fft.fft2(phases)), np.abs(np.fft.fft2(amplitudes))
    mixed = np.fft.ifft2(sizes * np.exp(1j * angles))
    assert np.abs(mixed.imag).max() < 1e-9
    return mixed.real


def filtered_by_numpy(images: Floats, radius: float) -> Floats:
    spectrum = np.fft.fftshift(np.fft.fft2(images), axes=(-2, -1))
    rows, columns = images.shape[-2:]
    for row, column in product(range(rows), range(columns)):
        y, x = (row - rows // 2) / rows, (column - columns // 2) / columns
        if math.hypot(y, x) > radius / 2:
            spectrum[..., row, column] = 0
    return np.fft.ifft2(np.fft.ifftshift(spectrum, axes=(-2, -1))).real


# Tiles


@pytest.mark.parametrize("grid", [1, 2, 3, 6])
def test_each_image_has_its_own_order(grid: int) -> None:
    images = np.random.default_rng(1).normal(size=(5, 3, 12, 6))
    orders = tile_orders(5, grid**2, np.random.default_rng(2))
    got = shuffle_tiles(torch.from_numpy(images), orders)
    for image, order, ours in zip(images, orders.numpy(), got.numpy(), strict=True):
        assert (ours == shuffled_by_loops(image, order, grid)).all()
    with pytest.raises(OptionError, match="8x9 pixels cannot be cut into 2x2 equal tiles"):
        shuffle_tiles(torch.zeros(1, 1, 8, 9), torch.zeros(1, 4, dtype=torch.int64))


# Patches


def test_sizes_that_no_grid_divides_have_patches_that_differ_by_a_pixel() -> None:
    wanted = np.kron(np.arange(64).reshape(8, 8), np.ones((4, 2), np.int64))
    assert (patch_numbers((32, 16)).numpy() == wanted).all()
    areas = np.bincount(patch_numbers((28, 9)).numpy().ravel())
    assert (len(areas), set(areas)) == (64, {3, 4, 6, 8})
    assert (patch_numbers((3, 5)).numpy() == np.arange(15).reshape(3, 5)).all()


def test_contributions_of_a_linear_model_are_exact() -> None:
    """Each is what the logit falls by without the patch; the highest are dropped first."""
    templates = torch.randn(4, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    pixels, model = noise(6, (16, 24), 3), Linear(templates)
    found = contributions(probed(model, pixels, [0] * 6, batch=4)).numpy()
    images = normalized(pixels)
    logits = np.einsum("bchw,kchw->bk", images, templates.numpy())
    color = images.mean((0, 2, 3))[:, None, None]
    own = ((images - color) * templates.numpy()[logits.argmax(1)]).sum(1)
    wanted = own.reshape(6, 8, 2, 8, 3).sum((2, 4)).reshape(6, 64)
    assert found == pytest.approx(wanted, abs=1e-4)
    given = torch.from_numpy(images.copy())
    less = drop_patches(given, torch.from_numpy(found), 0.25, torch.from_numpy(color)).numpy()
    assert (given.numpy() == images).all(), "the images given stay as they are"
    left = np.einsum("bchw,bchw->b", less, templates.numpy()[logits.argmax(1)])
    assert left == pytest.approx(logits.max(1) - np.sort(wanted)[:, -16:].sum(1), abs=1e-3)


@pytest.mark.parametrize("name", ["ViT(width=16,depth=2,heads=2,mlp=32)/4", "BiT-R50x1"])
def test_gradients_are_those_of_torch_func(name: str) -> None:
    more = {"stages": (1, 1, 1, 1)} if name.startswith("BiT") else {}
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(name, classes=5, image_size=16, generator=generator, **more).eval()
    for weight in model.parameters():
        weight.data.add_(0.01)  # a head of zeros would have no gradient
    asked = probed(model, noise(3, (16, 16), 3), [0, 1, 2])
    images = next(asked.batches())[0]
    gradient = torch.func.grad(lambda pixels: model(pixels).amax(-1).sum())(images)
    color = images.mean((0, 2, 3), keepdim=True)
    blocks = (
        (gradient * (images - color)).sum(1).detach().reshape(3, 8, 2, 8, 2).sum((2, 4)).flatten(1)
    )
    assert blocks.abs().max() > 1e-4
    assert contributions(asked).numpy() == pytest.approx(blocks.numpy(), abs=1e-5, rel=1e-4)
    assert all(weight.grad is None for weight in model.parameters())


# Spectra


@pytest.mark.parametrize("size", SIZES)
def test_spectra_as_by_numpy(size: tuple[int, int]) -> None:
    first, second = np.random.default_rng(0).normal(size=(2, 3, 2, *size))
    one, other = torch.from_numpy(first), torch.from_numpy(second)
    assert recombine(one, other).numpy() == pytest.approx(mixed_by_numpy(first, second), abs=1e-9)
    for radius in (0.25, 0.5, 1.0):
        low, fill = low_pass(one, radius).numpy(), torch.tensor([0.25, -2.0])[:, None, None]
        high = high_pass(one, radius, fill).numpy()
        wanted = filtered_by_numpy(first, radius)
        assert low == pytest.approx(wanted, abs=1e-9)
        assert high == pytest.approx(first - wanted + fill.numpy(), abs=1e-9)


def test_partners_are_of_another_class_and_equally_likely() -> None:
    labels = np.array([0, 2, 2, 0, 5, 2])
    generator = np.random.default_rng(0)
    drawn = np.stack([partners(labels, generator) for _ in range(6000)])
    assert (labels[drawn] != labels).all()
    for number, label in enumerate(labels):
        others = np.flatnonzero(labels != label)
        counts = np.bincount(drawn[:, number], minlength=6)[others] / 6000
        assert counts == pytest.approx(1 / len(others), abs=0.025)
    with pytest.raises(DataError, match="all images are of one class"):
        partners(np.array([3, 3, 3]), generator)


def test_shape_bias_counts_decisions_for_either_cue() -> None:
    predicted = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])
    shapes, textures = torch.tensor([0] * 8), torch.tensor([1] * 8)
    found = shape_bias(predicted, shapes, textures)
    assert found == {"cue_shape": 3 / 8, "cue_texture": 1 / 8, "shape_bias": 3 / 4}
    none = shape_bias(torch.tensor([2]), torch.tensor([0]), torch.tensor([1]))
    assert (none["cue_shape"], none["cue_texture"]) == (0, 0)
    assert math.isnan(none["shape_bias"])


# The figures of a linear model, whose answer to any image is known

PIXELS, LABELS = noise(60, (8, 8), 2), np.arange(60) % 3
TEMPLATES = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))


def share(images: Floats, wanted: NDArray[np.int64] = LABELS) -> float:
    """How many of the images (60, 2, 8, 8) are said to be of these classes."""
    classes = np.einsum("bchw,kchw->bk", images, TEMPLATES.numpy()).argmax(1)
    return float((classes == wanted).mean())


@pytest.mark.parametrize("batch", [7, 60])
def test_figures_by_numpy(batch: int) -> None:
    asked, images = probed(Linear(TEMPLATES), PIXELS, LABELS.tolist(), batch), normalized(PIXELS)
    seen = figures(asked, 7, "shuffled", "shift_", "consistency", "low_pass", "high_pass")
    mean = images.mean((0, 2, 3))[:, None, None]
    orders = tile_orders(60, 4, np.random.default_rng(7)).numpy()
    each = [shuffled_by_loops(i, order, 2) for i, order in zip(images, orders, strict=True)]
    wanted = {"shuffled_2": share(np.stack(each))}
    for percent in (25, 50, 75):
        low = filtered_by_numpy(images, percent / 100)
        wanted |= {
            f"low_pass_{percent}": share(low),
            f"high_pass_{percent}": share(images - low + mean),
        }
    directions = DIRECTIONS.numpy()[np.random.default_rng(7).integers(8, size=60)]
    for distance in (1, 2, 3, 4):
        moved = np.stack([shifted_by_padding(image, down, right) for image, (down, right)
                          in zip(images, distance * directions, strict=True)])  # fmt: skip
        clean = asked.predicted().numpy()
        wanted |= {
            f"shift_{distance}": share(moved),
            f"consistency_{distance}": share(moved, clean),
        }
    assert {name: seen[name] for name in wanted} == pytest.approx(wanted)
    assert seen.keys() - wanted.keys() == {"shuffled_4", "shuffled_8"}
    small = probed(Linear(torch.zeros(2, 1, 12, 12)), noise(2, (12, 12)), [0, 1])
    assert figures(small, 0, "shuffled").keys() == {"shuffled_2", "shuffled_4"}  # divide 12


def test_cue_figures_by_numpy() -> None:
    asked = probed(Linear(TEMPLATES), PIXELS, LABELS.tolist(), 7)
    seen = cue_figures(asked, np.random.default_rng(9))
    others = partners(LABELS, np.random.default_rng(9))
    unit = np.moveaxis(PIXELS, -1, 1) / 255
    mixed = (mixed_by_numpy(unit, unit[others]).clip(0, 1) - 0.5) / 0.25
    assert seen["cue_shape"] == pytest.approx(share(mixed))
    assert seen["cue_texture"] == pytest.approx(share(mixed, LABELS[others]))


def test_a_model_that_reads_one_patch() -> None:
    """Class 1 where the first patch is bright; what is dropped reads as class 0."""
    templates = torch.zeros(2, 1, 8, 8)
    templates[1, 0, 0, 0], templates[0, 0, 0, 0] = 1, -1
    pixels = np.zeros((40, 8, 8, 1), np.uint8)
    pixels[:, 0, 0] = 255
    seen = figures(probed(Linear(templates), pixels, [1] * 40), 5, "occluded")
    rank = np.argsort(np.argsort(-np.random.default_rng(5).random((40, 64)), 1), 1)[:, 0]
    for percent, dropped in ((25, 16), (50, 32), (75, 48)):
        assert seen[f"occluded_salient_{percent}"] == 0
        assert seen[f"occluded_nonsalient_{percent}"] == 1
        assert seen[f"occluded_{percent}"] == pytest.approx((rank >= dropped).mean())
    assert len(seen) == 9


def test_what_is_taken_away_has_the_mean_color_of_the_images() -> None:
    """Of dark ones a dark one, not that which the model's pixels are normalized by."""
    pixels = noise(40, (8, 8), 3) // np.array([2, 4, 8], np.uint8)
    color = normalized(pixels).mean((0, 2, 3), keepdims=True)
    model, inputs = Linear(torch.zeros(2, 3, 8, 8)), list[Floats]()
    model.register_forward_hook(lambda _, given, scores: inputs.append(given[0].detach().numpy()))
    figures(probed(model, pixels, [0, 1] * 20, batch=40), 0, "occluded")
    painted = [each for each in inputs if np.isclose(each, color, atol=1e-6).all(1).mean() > 0.2]
    assert len(painted) == 9
    for each in painted:
        same = np.isclose(each, color, atol=1e-6).all(1, keepdims=True)
        assert np.allclose(
            np.where(same, 0, each), np.where(same, 0, normalized(pixels)), atol=1e-6
        )
    flat = [each for each in inputs if np.allclose(each.mean((2, 3)), color[..., 0, 0], atol=1e-5)]
    assert len(flat) == 3, "without the low frequencies"


def test_small_images_are_shifted_less_and_a_model_that_is_always_wrong_can_be_consistent() -> None:
    asked = probed(Linear(torch.zeros(2, 1, 4, 4)), noise(6, (4, 4)), [1] * 6)
    seen = figures(asked, 0, "shift_", "consistency")
    assert [*seen] == [f"{n}_{d}" for d in (1, 2, 3) for n in ("shift", "consistency")]
    assert (seen["shift_2"], seen["consistency_2"]) == (0, 1)
