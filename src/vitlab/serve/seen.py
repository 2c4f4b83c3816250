"""What the engine says: about an image, and about the models it serves."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.pixels import Box

What = Literal["classes", "features", "attention"]


@dataclass(frozen=True)
class Seen:
    """The answer for one image.

    Attributes:
        probabilities: float64 (classes,), those of `vitlab.classify`; for classes and attention
        distance: from the training images, likewise; NaN if the model does not know
        features: float32 (features,), for features
        attention: float32 (rows, columns), where the last layers look, divided by its largest
            value; None where the model has no attention
        box: left, top, right and bottom of the part of the upright image that the model saw, as
            fractions
        error: why the image cannot be used, in one line; empty if it can
    """

    probabilities: NDArray[np.float64] | None = None
    distance: float = math.nan
    features: NDArray[np.float32] | None = None
    attention: NDArray[np.float32] | None = None
    box: Box = (0.0, 0.0, 1.0, 1.0)
    error: str = ""


@dataclass(frozen=True)
class ServedModel:
    """A model that is served.

    Attributes:
        name: by which requests name it
        model: its notation, as ViT-B/16
        classes: names of the classes
        image_size: rows and columns of its input, in pixels
        features: how many there are
        several: whether an image may have several classes
        thresholds: the probability above which each class counts as predicted, where it may
        trunk: what it shares its weights with others by, the beginning of a fingerprint; else empty
        bytes: of its own weights
        added: seconds since the epoch
        attention: whether it has attention to show
        engine: what computes images of the weights themselves, as `vitlab.accelerate` names it
        precision: fp32 or bf16
    """

    name: str
    model: str
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    features: int
    several: bool
    thresholds: tuple[float, ...]
    trunk: str
    bytes: int
    added: float
    attention: bool
    engine: str = "plain"
    precision: str = "fp32"
