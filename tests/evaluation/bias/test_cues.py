"""Spectra: by NumPy's transforms, and of models that decide by phases or amplitudes alone."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from evaluation.bias.linear_model import Linear, figures, noise, normalized, probed
from vitlab.errors import DataError
from vitlab.evaluation.inductive_bias import (
    cue_figures,
    high_pass,
    low_pass,
    partners,
    recombine,
    shape_bias,
)

SIZES = [(8, 8), (7, 9), (6, 5)]


def images_of(size: tuple[int, int], seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(3, 2, *size))


def mixed_by_numpy(
    phases: NDArray[np.float64], amplitudes: NDArray[np.float64]
) -> NDArray[np.float64]:
    angles, sizes = np.angle(np.fft.fft2(phases)), np.abs(np.fft.fft2(amplitudes))
    mixed = np.fft.ifft2(sizes * np.exp(1j * angles))
    assert np.abs(mixed.imag).max() < 1e-9
    return mixed.real


def filtered_by_numpy(images: NDArray[np.float64], radius: float) -> NDArray[np.float64]:
    spectrum = np.fft.fftshift(np.fft.fft2(images), axes=(-2, -1))
    rows, columns = images.shape[-2:]
    for row in range(rows):
        for column in range(columns):
            y, x = (row - rows // 2) / rows, (column - columns // 2) / columns
            if math.hypot(y, x) > radius / 2:
                spectrum[..., row, column] = 0
    return np.fft.ifft2(np.fft.ifftshift(spectrum, axes=(-2, -1))).real


@pytest.mark.parametrize("size", SIZES)
def test_recombined_as_by_numpy(size: tuple[int, int]) -> None:
    first, second = images_of(size, 0), images_of(size, 1)
    got = recombine(torch.from_numpy(first), torch.from_numpy(second)).numpy()
    assert got == pytest.approx(mixed_by_numpy(first, second), abs=1e-9)
    same = recombine(torch.from_numpy(first), torch.from_numpy(first)).numpy()
    assert same == pytest.approx(first, abs=1e-9)
    assert np.abs(np.fft.fft2(got)) == pytest.approx(np.abs(np.fft.fft2(second)), abs=1e-9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("radius", [0.25, 0.5, 0.75])
def test_filtered_as_by_numpy(size: tuple[int, int], radius: float) -> None:
    images = images_of(size, 2)
    low, high = (each(torch.from_numpy(images), radius).numpy() for each in (low_pass, high_pass))
    wanted = filtered_by_numpy(images, radius)
    assert low == pytest.approx(wanted, abs=1e-9)
    assert high == pytest.approx(images - wanted, abs=1e-9)
    assert high.mean((2, 3)) == pytest.approx(0, abs=1e-9)


def test_a_wave_passes_below_its_frequency_or_above() -> None:
    """Four cycles in sixteen pixels are half of the Nyquist frequency."""
    wave = torch.cos(2 * math.pi * 4 * torch.arange(16) / 16).expand(1, 1, 16, 16)
    assert torch.allclose(low_pass(wave, 0.5), wave, atol=1e-6)
    assert low_pass(wave, 0.49).abs().max() < 1e-6
    assert high_pass(wave, 0.5).abs().max() < 1e-6
    assert torch.allclose(low_pass(wave, 1.5), wave, atol=1e-6)


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
    assert shape_bias(predicted, shapes, textures) == {
        "cue_shape": 3 / 8,
        "cue_texture": 1 / 8,
        "shape_bias": 3 / 4,
    }
    none = shape_bias(torch.tensor([2]), torch.tensor([0]), torch.tensor([1]))
    assert (none["cue_shape"], none["cue_texture"]) == (0, 0)
    assert math.isnan(none["shape_bias"])


def test_a_model_of_positions_has_a_shape_bias_of_one() -> None:
    """Spots at two places have the same amplitudes, so that their phases alone tell them apart."""
    spots = torch.zeros(2, 1, 8, 8)
    spots[0, 0, 2, 1], spots[1, 0, 5, 6] = 1, 1
    labels = [0, 1, 1, 0, 1]
    pixels = (200 * spots.permute(0, 2, 3, 1)).numpy().astype(np.uint8)[labels]
    seen = cue_figures(probed(Linear(spots), pixels, labels, batch=2), np.random.default_rng(0))
    assert seen == {"cue_shape": 1, "cue_texture": 0, "shape_bias": 1}


def test_a_model_of_brightness_has_a_shape_bias_of_zero() -> None:
    """The mean is an amplitude: dark and bright images change their classes."""
    templates = torch.ones(2, 1, 8, 8) * torch.tensor([-1, 1])[:, None, None, None]
    labels = [0, 1, 1, 0, 1]
    pixels = noise(5, (8, 8)) // 16 + np.array([70, 160], np.uint8)[labels][:, None, None, None]
    asked = probed(Linear(templates), pixels, labels, batch=2)
    assert torch.equal(asked.predicted(), asked.labels)
    seen = cue_figures(asked, np.random.default_rng(0))
    assert seen == {"cue_shape": 0, "cue_texture": 1, "shape_bias": 0}


def test_cue_figures_by_numpy() -> None:
    templates = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    pixels, labels = noise(60, (8, 8), 2), np.arange(60) % 3
    seen = cue_figures(
        probed(Linear(templates), pixels, labels.tolist(), 7), np.random.default_rng(9)
    )
    others = partners(labels, np.random.default_rng(9))
    unit = np.moveaxis(pixels, -1, 1) / 255
    mixed = (mixed_by_numpy(unit, unit[others]).clip(0, 1) - 0.5) / 0.25
    classes = np.einsum("bchw,kchw->bk", mixed, templates.numpy()).argmax(1)
    assert seen["cue_shape"] == pytest.approx((classes == labels).mean())
    assert seen["cue_texture"] == pytest.approx((classes == labels[others]).mean())


def test_filtered_figures_by_numpy() -> None:
    templates = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    pixels, labels = noise(60, (8, 8)), np.arange(60) % 3
    seen = figures(probed(Linear(templates), pixels, labels.tolist()), 0, "low_pass", "high_pass")
    images = normalized(pixels)
    for percent in (25, 50, 75):
        low = filtered_by_numpy(images, percent / 100)
        for name, changed in (("low_pass", low), ("high_pass", images - low)):
            classes = np.einsum("bchw,kchw->bk", changed, templates.numpy()).argmax(1)
            assert seen[f"{name}_{percent}"] == pytest.approx((classes == labels).mean())
    assert len(seen) == 6
