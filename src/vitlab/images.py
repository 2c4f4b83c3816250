"""The image specification of a model: size, channels, mean, deviation, resizing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vitlab.errors import OptionError
from vitlab.options import Options, above, at_least, at_most, hints, option, when

Size = int | tuple[int, int]
MOST_PIXELS, MOST_CHANNELS = 2**26, 2**12  # of an input; other people's files state them
USUAL = (1, 3, 4)  # channels of images; a mean of equal numbers for these stands for all others
# Normalizations of pixels in [0, 1] that released models were trained with, per RGB channel.
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
INCEPTION = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
OPENAI = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}


@dataclass(frozen=True, kw_only=True)
class ImageSpec(Options):
    """Size, channels and normalization of the images that a model takes.

    A model's configuration is one of these with more fields; `config.images` is this part alone.
    An image of bytes becomes `(pixels / 255 - mean) / std`, (channels, rows, columns).

    Raises:
        OptionError: a value that cannot be; the message says what would work.
    """

    image_size: Size = option(
        224, "rows and columns of the input in pixels; one number for a square", at_least(1)
    )
    channels: int = option(3, "image channels: 1 (gray), 3 (RGB) or 4 (RGBA)", at_least(1))
    mean: tuple[float, ...] = option(
        (0.5,), "subtracted from pixel values in [0, 1]; one number, or one per channel"
    )
    std: tuple[float, ...] = option(
        (0.5,), "divides what is left; one number, or one per channel", above(0)
    )
    interpolation: Literal["bilinear", "bicubic"] = option(
        "bilinear", "how images are resized to image_size"
    )
    crop: float = option(
        1.0, "share of each side that evaluation keeps, around the center", above(0), at_most(1)
    )
    fit: Literal["crop", "squash", "native"] = option(
        "crop",
        "how other aspect ratios are fitted: center crop, squash, or native: kept, within tokens",
    )
    center: Literal["round", "floor"] = option(
        "round", "how evaluation's box falls on whole pixels: rounded (timm) or down (transformers)"
    )
    tokens: int = option(
        256,
        "most patches of an image with its native aspect ratio",
        at_least(1),
        only=when("fit", "native"),
    )

    def __post_init__(self) -> None:
        """Check every field; one mean for all channels becomes one per channel."""
        super().__post_init__()
        if self.channels > MOST_CHANNELS:
            raise OptionError(f"channels must be at most {MOST_CHANNELS:,}, not {self.channels:,}")
        if self.area > MOST_PIXELS:
            raise OptionError(
                f"an image of {self.area:,} pixels is too large for a model; the limit is "
                f"{MOST_PIXELS:,}, such as image_size=8192"
            )
        rows, columns = self.size
        object.__setattr__(self, "image_size", rows if rows == columns else self.size)
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(set(values)) == 1 and len(values) in USUAL:
                values = values[:1] * self.channels
            if len(values) != self.channels:
                rest = f", not {len(values)}" if values else ""
                raise OptionError(
                    f"{name} needs {self.channels} numbers, one per channel{rest}: give one number "
                    "for all channels, such as mean=0.5 and std=0.5 (--mean 0.5 --std 0.5)"
                )
            object.__setattr__(self, name, values)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the input, in pixels."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size

    @property
    def step(self) -> int:
        """What the sides of every image are multiples of, in pixels."""
        return 1

    @property
    def area(self) -> int:
        """Pixels of an image, at most."""
        if self.fit == "native":
            return self.tokens * self.step**2
        return math.prod(self.size)

    def size_for(self, rows: float, columns: float) -> tuple[int, int]:
        """Return the size in pixels that an image, or a part of one, is resized to.

        Args:
            rows: its height, in any unit
            columns: its width, in the same
        """
        if self.fit == "native":
            return native_size(rows, columns, self.step, self.tokens)
        return self.size

    @property
    def images(self) -> "ImageSpec":
        """This part alone, of whatever it is a part of."""
        return ImageSpec(**{name: getattr(self, name) for name in hints(ImageSpec)})


def chosen_over(found: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with others chosen over them; with another `fit`, `tokens` do not apply."""
    fields = {**found, **chosen}
    if chosen.get("fit", "native") != "native" and "tokens" not in chosen:
        fields.pop("tokens", None)
    return fields


def native_size(rows: float, columns: float, patch: int, tokens: int) -> tuple[int, int]:
    """Return the largest size of an aspect ratio that is so many patches at most.

    One scale serves both sides, each of which is then rounded up to whole patches: the ratio is
    kept as far as these allow. The scale is found to 1e-5 by bisection between 1e-6 and 100, as in
    Google's NaFlex (Tschannen et al., SigLIP 2, 2025), transformers' Siglip2ImageProcessor and
    timm: their sizes to the pixel.

    Args:
        rows: height of the image
        columns: width of the image
        patch: pixels per side
        tokens: most patches

    Returns:
        Rows and columns in pixels, multiples of the patch.
    """
    low, high = 1e-6, 100.0

    def scaled(scale: float) -> tuple[int, int]:
        tall, wide = (max(1, math.ceil(side * scale / patch)) * patch for side in (rows, columns))
        return tall, wide

    while high - low >= 1e-5:
        middle = (low + high) / 2
        if math.prod(scaled(middle)) <= tokens * patch**2:
            low = middle
        else:
            high = middle
    return scaled(low)
