"""Augmentation against scipy's affine sampling, and by hand where it is exact."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from oracles.peers import timm
from vitlab.data.augment import augment as module
from vitlab.data.augment.augment import augment, erase, normal, rectangles, splitmix
from vitlab.data.augment.draws import draws_needed
from vitlab.data.augment.normalize import normalize
from vitlab.data.augment.ops import affine
from vitlab.data.settings import Augment
from vitlab.images import ImageSpec

UNIT = ImageSpec(mean=0.0, std=1.0)
HALF = torch.full((1, 6), 0.5)  # the draw that means: not moved (and not flipped)


def draw(place: int, value: float) -> torch.Tensor:
    draws = HALF.clone()
    draws[0, place] = value
    return draws


def smooth(rows: int, columns: int) -> torch.Tensor:
    coarse = torch.rand(1, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    fine = torch.nn.functional.interpolate(coarse, (rows, columns), mode="bicubic")
    return (fine.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).contiguous()


def plain(images, draws, options):
    return augment(images, draws, options, UNIT)


def test_normalize_is_scale_less_mean_by_std() -> None:
    images = torch.randint(0, 256, (2, 4, 5, 3), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    got = normalize(images, ImageSpec(mean=mean, std=std))
    want = (images.double().numpy() / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(got.permute(0, 2, 3, 1).numpy(), want, atol=1e-6)
    assert got.dtype == torch.float32


def test_flip_mirrors_half_of_the_images_exactly() -> None:
    images, draws = torch.randint(0, 256, (64, 6, 8, 3), dtype=torch.uint8), HALF.repeat(64, 1)
    draws[:, 0] = torch.rand(64)
    flipped = draws[:, 0] < 0.5
    assert 16 < flipped.sum() < 48
    want = torch.where(flipped[:, None, None, None], images.flip(2), images)
    for rotate in (0.0, 30.0):
        got = plain(images, draws, Augment(flip=True, rotate=rotate))
        torch.testing.assert_close(got, normalize(want, UNIT), atol=1e-5, rtol=0)


def test_shift_by_whole_pixels_is_exact_and_black_comes_in() -> None:
    images = smooth(8, 16)
    got = plain(images, draw(2, 0.75), Augment(shift=0.25))  # (2 * 0.75 - 1) * 0.25 of 16: 2 pixels
    want = torch.zeros_like(images)
    want[:, :, :14] = images[:, :, 2:]
    torch.testing.assert_close(got, normalize(want, UNIT), atol=1e-5, rtol=0)
    got = plain(images := smooth(9, 9), draw(1, 0.0), Augment(rotate=90))  # so are quarter turns
    turned = [torch.rot90(normalize(images, UNIT), k, (2, 3)) for k in (1, 3)]
    assert min((got - each).abs().max() for each in turned) < 1e-5


@pytest.mark.parametrize(
    ("place", "value", "options"),
    [(1, 0.9, Augment(rotate=40)), (4, 0.1, Augment(zoom=0.4)), (5, 0.8, Augment(shear=25))],
)
def test_agrees_with_scipy(place: int, value: float, options: Augment) -> None:
    """Maps written down independently, in pixels, and sampled by scipy."""
    rows, columns = 20, 28
    images = smooth(rows, columns)
    got = plain(images, draw(place, value), options)[0]
    amount = 2 * value - 1
    angle, scale = math.radians(options.rotate) * amount, (1 + options.zoom) ** amount
    slant = math.tan(math.radians(options.shear) * amount)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    xy = turn @ np.array([[1, slant], [0, 1]]) / scale
    matrix = xy[::-1, ::-1]  # scipy counts rows first
    center = np.array([(rows - 1) / 2, (columns - 1) / 2])
    for channel in range(3):
        pixels = images[0, :, :, channel].double().numpy() / 255
        want = ndimage.affine_transform(pixels, matrix, center - matrix @ center, order=1)
        inner = (slice(6, -6), slice(8, -8))  # the two treat the border differently
        np.testing.assert_allclose(got[channel].numpy()[inner], want[inner], atol=1e-5)


def test_movements_stay_within_what_the_recipe_allows() -> None:
    options = Augment(rotate=15, zoom=0.2)
    theta = affine(torch.rand(500, 6), options, 10, 10)
    angles = torch.rad2deg(torch.atan2(theta[:, 1, 0], theta[:, 0, 0]))
    scale = 1 / theta[:, :, 0].norm(dim=1)
    assert 14 < angles.abs().max() <= 15.001
    assert 1 / 1.2001 <= scale.min() < 0.85
    assert 1.18 < scale.max() <= 1.2001


def test_a_cubic_stays_within_the_values_there_are() -> None:
    images = 255 * torch.randint(0, 2, (8, 12, 12, 1), dtype=torch.uint8)
    options = Augment(rotate=30, augment_interpolation="bicubic")
    got = augment(images, torch.rand(8, 6), options, ImageSpec(channels=1, mean=0.0, std=1.0))
    assert got.min() >= 0
    assert got.max() <= 1


def test_a_large_batch_is_varied_in_parts_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (10, 12, 14, 3), dtype=torch.uint8)
    draws = torch.rand(10, draws_needed(Augment(rand_ops=2)))
    whole = {}
    for options in (Augment(flip=True), Augment(rotate=9), Augment(rand_ops=2, erase=0.5)):
        whole[options] = plain(images, draws, options)
    monkeypatch.setattr(module, "CACHED", 3 * 12 * 14 * 3)
    for options, want in whole.items():
        assert torch.equal(plain(images, draws, options), want)


def uniform(count: int, seed: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(seed).random((count, 25), np.float32).astype(np.float64)


def reference(key: int, count: int) -> list[int]:
    """SplitMix64 as published, in whole numbers of any size."""
    words, mask = [], 2**64 - 1
    for _ in range(count):
        key = (key + 0x9E3779B97F4A7C15) & mask
        word = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        words.append(word ^ (word >> 31))
    return words


def test_the_generator_is_splitmix64() -> None:
    keys = [1234567, 0, 2**48 - 1]
    got = splitmix(torch.tensor(keys), 40).numpy().astype(np.uint64).tolist()
    assert got == [reference(key, 40) for key in keys]
    assert got[0][:2] == [6457827717110365317, 3203168211198807973]  # the published test vector


def test_noise_is_standard_normal_and_independent() -> None:
    noise = normal(torch.arange(20), 4001)
    assert noise.shape == (20, 4001)
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3
    across = np.corrcoef(noise.numpy())
    assert np.abs(across - np.eye(20)).max() < 0.08
    along = np.corrcoef(noise[:, :-1].flatten().numpy(), noise[:, 1:].flatten().numpy())[0, 1]
    assert abs(along) < 0.02
    noise = normal(torch.arange(4), 2**18)  # meets the outermost values often
    assert noise.isfinite().all()
    assert noise.min() == -noise.max()


def test_rectangles_are_distributed_as_timms() -> None:
    timm()
    from timm.data.random_erasing import RandomErasing

    rows, columns, count = 32, 48, 1500
    theirs = RandomErasing(probability=1, mode="pixel", device="cpu")
    figures = []
    for _ in range(count):
        hole = (theirs(torch.full((1, rows, columns), 9.0))[0] != 9).nonzero()
        top, left = hole.amin(0).tolist()
        height, width = (hole.amax(0) - hole.amin(0) + 1).tolist()
        figures.append((top, left, height, width))
    want, got = np.array(figures), rectangles(uniform(count), rows, columns)
    for k in range(4):
        assert stats.ks_2samp(want[:, k], got[:, k]).pvalue > 1e-3
    share = got[:, 2] * got[:, 3] / (rows * columns)
    assert 0.015 < share.min() < share.max() < 0.35
    assert (got[:, 0] + got[:, 2] <= rows).all()
    assert (got[:, 1] + got[:, 3] <= columns).all()


def test_only_the_rectangles_of_some_images_change() -> None:
    draws = uniform(400)
    pixels = torch.full((400, 2, 20, 24), 7.0)
    got = erase(pixels.clone(), draws, 0.25)
    boxes = rectangles(draws, 20, 24)
    for i, (top, left, height, width) in enumerate(boxes.tolist()):
        want = torch.zeros(20, 24, dtype=torch.bool)
        want[top : top + height, left : left + width] = bool(draws[i, 0] < 0.25)
        assert torch.equal((got[i] != 7).all(0), want)
        assert torch.equal((got[i] != 7).any(0), want)
    assert math.isclose((draws[:, 0] < 0.25).mean(), 0.25, abs_tol=0.06)
    assert torch.equal(erase(pixels.clone(), draws, 0.0), pixels)
    assert not erase(torch.zeros(50, 1, 1, 1), uniform(50), 1.0).any()  # no rectangle fits


def test_each_image_has_its_own_noise() -> None:
    """The same rectangle in two images, from the same draws but the last two."""
    draws = uniform(1).repeat(2, axis=0)
    draws[:, 0], draws[1, -2:] = 0, (0.25, 0.75)
    first, second = erase(torch.zeros(2, 1, 20, 24), draws, 1.0)
    assert torch.equal(first != 0, second != 0)
    assert not torch.equal(first, second)
