"""Random erasing: timm's rectangles, and noise that is a function of an image's own numbers."""

import math

import numpy as np
import torch
from scipy import stats

from oracles.peers import timm
from vitlab.data.augment.augment import erase, normal, rectangles, splitmix


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


def test_each_image_has_its_own_noise() -> None:
    """The same rectangle in two images, from the same draws but the last two."""
    draws = uniform(1).repeat(2, axis=0)
    draws[:, 0], draws[1, -2:] = 0, (0.25, 0.75)
    first, second = erase(torch.zeros(2, 1, 20, 24), draws, 1.0)
    assert torch.equal(first != 0, second != 0)
    assert not torch.equal(first, second)


def test_noise_is_finite_and_as_often_above_as_below_zero() -> None:
    """A million numbers meet the outermost of the 65,536 values about sixteen times each."""
    noise = normal(torch.arange(4), 2**18)
    assert noise.isfinite().all()
    assert noise.min() == -noise.max()


def test_an_image_no_rectangle_fits_stays_as_it_is() -> None:
    pixels = torch.zeros(50, 1, 1, 1)
    assert not erase(pixels.clone(), uniform(50), 1.0).any()
