"""Shape against texture, and coarse against fine structure, by the spectrum of the images.

The phases of an image's Fourier transform carry its shapes, the amplitudes its texture and
statistics (Chen et al., Amplitude-Phase Recombination: Rethinking Robustness of Convolutional
Neural Networks in Frequency Domain, 2021).
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.errors import DataError
from vitlab.evaluation.bias.probed_images import Probed, share

RADII = (0.25, 0.5, 0.75)  # of the Nyquist frequency
NYQUIST = 0.5  # cycles per pixel


def recombine(phases: Tensor, amplitudes: Tensor) -> Tensor:
    """Return images with the phase spectrum of one and the amplitude spectrum of another.

    Args:
        phases: images that give their phases, (b, channels, H, W)
        amplitudes: images that give their amplitudes, of the same shape

    Returns:
        (b, channels, H, W); an image recombined with itself is itself.
    """
    size = (phases.shape[-2], phases.shape[-1])
    angles = torch.fft.rfft2(phases).angle()
    return torch.fft.irfft2(torch.polar(torch.fft.rfft2(amplitudes).abs(), angles), s=size)


def frequencies(size: tuple[int, int]) -> Tensor:
    """Return the radial frequencies of `torch.fft.rfft2`, as shares of the Nyquist frequency.

    Args:
        size: rows and columns of the image, in pixels

    Returns:
        (rows, columns // 2 + 1): 0 for the mean, 1 along an axis at most, sqrt(2) in the corner.
    """
    rows, columns = torch.fft.fftfreq(size[0]), torch.fft.rfftfreq(size[1])
    return torch.hypot(rows[:, None], columns) / NYQUIST


def low_pass(images: Tensor, radius: float) -> Tensor:
    """Keep the frequencies up to a radius.

    Args:
        images: (b, channels, H, W)
        radius: share of the Nyquist frequency

    Returns:
        (b, channels, H, W).
    """
    size = (images.shape[-2], images.shape[-1])
    kept = (frequencies(size) <= radius).to(images.device)
    return torch.fft.irfft2(torch.fft.rfft2(images) * kept, s=size)


def high_pass(images: Tensor, radius: float) -> Tensor:
    """Keep the frequencies above a radius: what `low_pass` removes.

    The mean of every channel becomes zero, which is the mean of normalized pixels.
    """
    return images - low_pass(images, radius)


def partners(labels: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw an image of another class for each, all of them equally likely.

    Args:
        labels: class of each image, (n,)
        generator: of the draws

    Returns:
        Their numbers, int64 (n,).

    Raises:
        DataError: all images are of one class.
    """
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], labels, side="right")
    others = len(labels) - np.bincount(labels)[labels]
    if not others.all():
        raise DataError("all images are of one class: shape and texture need at least 2 classes")
    return order[(ends + generator.integers(others)) % len(labels)]


def shape_bias(predicted: Tensor, shapes: Tensor, textures: Tensor) -> dict[str, float]:
    """Count the decisions for each cue where the two disagree.

    Source: Geirhos et al., ImageNet-Trained CNNs Are Biased Towards Texture, 2019, figure 4: the
    decisions for the shape's class, of those for either class.

    Args:
        predicted: class of each image, int64 (n,)
        shapes: class of the image that gave its shape, (n,)
        textures: class of the image that gave its texture, (n,)

    Returns:
        `cue_shape` and `cue_texture`, the shares of all images that were taken for the one and the
        other; `shape_bias`, NaN if none was taken for either.
    """
    shape, texture = share(predicted == shapes), share(predicted == textures)
    bias = shape / (shape + texture) if shape + texture else math.nan
    return {"cue_shape": shape, "cue_texture": texture, "shape_bias": bias}


def cue_figures(probed: Probed, generator: np.random.Generator) -> dict[str, float]:
    """Return what the model decides by if phases and amplitudes are of different classes.

    Spectra are exchanged between images of pixels from 0 to 1, and what leaves that range is
    clipped, as in an image file.

    Raises:
        DataError: all images are of one class.
    """
    labels = probed.labels.numpy()
    others = torch.from_numpy(partners(labels, generator))
    predicted = probed.predicted(partial(_conflicting, probed=probed, others=others))
    return shape_bias(predicted, probed.labels, probed.labels[others])


def _conflicting(images: Tensor, places: slice, *, probed: Probed, others: Tensor) -> Tensor:
    """Give the images at some places the amplitudes of their partners among all."""
    config = probed.model.config
    mean, std = (
        torch.tensor(each, device=images.device).reshape(-1, 1, 1)
        for each in (config.mean, config.std)
    )
    texture = probed.normalized(probed.pixels[others[places]])
    mixed = recombine(images * std + mean, texture * std + mean)
    return (mixed.clamp(0, 1) - mean) / std


def filtered_figures(probed: Probed) -> dict[str, float]:
    """Return the accuracy on filtered images, `low_pass_50` for half of the Nyquist frequency.

    Sources: Yin et al., A Fourier Perspective on Model Robustness in Computer Vision, 2019 (the
    filters); Park and Kim, How Do Vision Transformers Work?, 2022 (self-attention acts as a
    low-pass filter, convolutions as high-pass filters).
    """
    return {
        f"{name}_{round(100 * radius)}": probed.accuracy(
            partial(_filtered, change=change, radius=radius)
        )
        for name, change in (("low_pass", low_pass), ("high_pass", high_pass))
        for radius in RADII
    }


def _filtered(
    images: Tensor, places: slice, *, change: Callable[[Tensor, float], Tensor], radius: float
) -> Tensor:
    """Filter images, the same wherever they are among all."""
    return change(images, radius)
