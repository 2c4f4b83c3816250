"""Findings inside a model: plain values, for pictures, numbers and pages."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
WATCHING = ("relevance", "gradcam", "occlusion")  # maps that are for a class


@dataclass(frozen=True)
class SeenImage:
    """What a model makes of one image; what has no meaning for the model is missing.

    Attributes:
        name: where it comes from
        pixels: the part of it that the model sees, uint8 (H, W) or (H, W, 3)
        top: the likeliest classes with their probabilities, best first
        watched: the class that `relevance`, `gradcam` and `occlusion` are for
        maps: by the name of the function that made them, (rows, columns): late_attention,
            rollout, relevance, gradcam, occlusion, similar_patches, norm_map
        patch: row and column of the patch that `similar_patches` compares the others with
        heads: attention of each head of the class token, or of the pool, (heads, rows, columns)
        colors: principal components of its patch features, (rows, columns, 3), 0 to 1
    """

    name: str
    pixels: NDArray[np.uint8]
    top: tuple[tuple[str, float], ...] = ()
    watched: str = ""
    maps: dict[str, Floats] = field(default_factory=dict)
    patch: tuple[int, int] | None = None
    heads: Floats | None = None
    colors: Floats | None = None


@dataclass
class Looked:
    """What was found; None where it has no meaning for the model, and a note says why.

    Attributes:
        model: its name
        images: the first ones, each by itself
        count: of the images behind what follows
        layer: whose heads, colors, norms and similar patches are shown; 0 for the last one
        distance: of each head's attention, pixels, (layers, heads)
        among: the same with the attention shared out among the patches
        elsewhere: share of each head's attention that no patch gets: the class token's, mostly
        entropy: of each head's attention, bits, (layers, heads)
        norms: of the patches' tokens, mean over patches and images, (layers + 1,)
        longest: the longest of all patches' tokens, (layers + 1,)
        alike: mean cosine of two patches' tokens, (layers + 1,)
        filters: principal components of the first layer's, (count, rows, columns, channels)
        positions: similarity, (rows, columns, rows, columns)
        cka: how alike layers are to those of `beside`, (layers, other layers)
        beside: name of the other model; empty for the model itself
        compared: images behind `cka`
        missing: what has no meaning here, by the reason
        notes: further remarks, such as images that cannot be read
    """

    model: str
    images: list[SeenImage] = field(default_factory=list)
    count: int = 0
    layer: int = 0
    distance: Floats | None = None
    among: Floats | None = None
    elsewhere: Floats | None = None
    entropy: Floats | None = None
    norms: Floats | None = None
    longest: Floats | None = None
    alike: Floats | None = None
    filters: Floats | None = None
    positions: Floats | None = None
    cka: Floats | None = None
    beside: str = ""
    compared: int = 0
    missing: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def lacks(self, name: str, reason: str) -> None:
        """Note that something has no meaning for the model."""
        names = self.missing.setdefault(reason, [])
        if name not in names:
            names.append(name)

    @property
    def remarks(self) -> list[str]:
        """The notes, and a line for each reason why something is missing."""
        reasons = (f"{', '.join(names)}: {reason}" for reason, names in self.missing.items())
        return [*self.notes, *reasons]
