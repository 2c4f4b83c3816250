"""What the report calls tasks, figures and pictures, and how it explains them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vitlab.report.drawings.curves import Best
from vitlab.units import percent

TITLES = {
    "masked-patch": "Masked patch prediction",
    "tokenizer": "Image tokenizer",
    "beit": "BEiT",
    "mae": "Masked autoencoder",
    "dino": "Self-distillation (DINO)",
}
TARGETS = {
    "mean-color": "the mean color",
    "downsized": "4x4 colors",
    "pixels": "the pixels",
}


@dataclass(frozen=True)
class Words:
    """How a figure of a task is shown.

    Attributes:
        title: its name for the reader
        note: how to read it
        share: whether it is written in percent
        best: finds the best value; None where neither more nor less is better
        of: what is shown of the value that the journal has
    """

    title: str
    note: str = ""
    share: bool = False
    best: Best | None = None
    of: Callable[[float], float] = float

    def shown(self, value: float) -> str:
        """Format a value of the journal."""
        own = self.of(value)
        if self.share:
            return percent(own)
        return f"{own:,.0f}" if 1000 <= abs(own) < math.inf else f"{own:.3g}"


def exponent(value: float) -> float:
    """Return e to the value; infinity where that is too large a number."""
    return math.exp(value) if value < 700 else math.inf


FIGURES = {
    "color_error": Words(
        "Color error", "mean absolute error of hidden mean colors, from 0 to 1", best=np.nanargmin
    ),
    "pixel_error": Words(
        "Pixel error", "mean squared error of hidden pixels, from 0 to 1", best=np.nanargmin
    ),
    "error": Words(
        "Reconstruction error", "mean squared error of pixels, from 0 to 1", best=np.nanargmin
    ),
    "agreement": Words(
        "Code agreement", "hidden patches whose code was predicted", share=True, best=np.nanargmax
    ),
    "accuracy": Words("Accuracy", "predictions that are right", share=True, best=np.nanargmax),
    "entropy": Words(
        "Code perplexity", "as many codes, used equally often, are as diverse", of=exponent
    ),
    "teacher_entropy": Words(
        "Entropy of an answer", "nats, of the teacher; 0 is a single prototype"
    ),
    "mean_entropy": Words(
        "Entropy of the mean answer", "nats; 0 is one answer for all images: a collapse"
    ),
    "disagreement": Words("Disagreement", "nats, of student and teacher on other crops"),
    "feature_spread": Words("Spread of features", "0 where all images have the same"),
}
COLUMNS = {
    "masked": "hidden patches are gray",
    "predicted": "hidden patches as they are predicted",
    "reconstructed": "hidden patches as they are predicted",
    "agreement": "hidden patches: green where the predicted code is the tokenizer's, red where not",
    "decoded": "the tokenizer's picture of the predicted codes, and of the true ones elsewhere",
    "from its codes": "what the tokenizer makes of the image's codes alone",
    "features": "patches of like features in like colors: their first three principal components",
}


def words_of(name: str) -> Words:
    """Return how a figure is shown; one that is not known here keeps its name."""
    return FIGURES.get(name) or Words(name.replace("_", " ").capitalize())


def learned(task: str, target: str = "", ratio: float | None = None) -> str:
    """Return what was learned, to follow `learned`: `to fill in hidden patches`."""
    share = "hidden patches" + (f" ({ratio:.0%} of each image)" if ratio else "")
    match task:
        case "masked-patch":
            return f"to predict {TARGETS.get(target, 'the colors')} of {share}"
        case "tokenizer":
            return "to write images in codes and to draw them again"
        case "beit":
            return f"to predict the codes of {share}"
        case "mae":
            return f"to fill in {share}"
        case "dino":
            return "to answer alike to different crops of an image"
        case _:
            return "without labels"
