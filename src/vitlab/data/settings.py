"""What the data part of a recipe can say. No PyTorch here."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro.constructors


def percent(text: str) -> float:
    """A share given as `1%` or as `0.01`."""
    number = text.strip().removesuffix("%")
    return float(number) / (100 if number != text.strip() else 1)


Share = Annotated[
    float,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SHARE",
        instance_from_str=lambda words: percent(words[0]),
        is_instance=lambda value: isinstance(value, float | int),
        str_from_instance=lambda value: [f"{100 * value:g}%"],
    ),
]


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is learned from.

    Attributes:
        data: digits, a folder of class folders (with train/ and val/ or test/, or without),
            Parquet files, WebDataset shards (glob or brace range, local or s3://, https://, hf://),
            a .csv or .jsonl list of paths, or the name of a Hugging Face data set (user/name)
        test_fraction: share of each class held out for testing where the data has no such split
    """

    data: tyro.conf.Positional[str] = ""
    test_fraction: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Augment:
    """How training images are varied, each sample anew every epoch.

    Attributes:
        area: a random crop keeps at least this share of the image (1: no random crop)
        aspect: a random crop is stretched by at most this factor
        flip: mirror left and right, half of the time
        rotate: turn by up to so many degrees either way
        shift: move by up to this share of a side
        zoom: magnify or shrink by up to this factor, 0.1 for 10 percent
        shear: slant by up to so many degrees
        rand_ops: RandAugment operations an image (0: none)
        rand_magnitude: how strong they are, usually up to 10
        rand_std: standard deviation of the magnitude
        rand_limit: greatest magnitude after that
        rand_probability: how often each of the operations takes place
        rand_increasing: every operation grows with the magnitude (timm's inc1)
        three_augment: gray, solarized or blurred, one of the three an image (DeiT III)
        color_jitter: change brightness, contrast and color by factors up to this far from 1
        hue_jitter: turn hues by up to this share of the circle
        erase: how often a rectangle gives way to noise
        mixup: Beta parameter of Mixup (0: none)
        cutmix: Beta parameter of CutMix (0: none)
        mix_switch: with both, how often a batch is cut rather than blended
        repeats: times an image comes in one epoch, which shows as many fewer images
        augment_interpolation: how values between pixels are had where images are moved
    """

    area: float = 1.0
    aspect: float = 4 / 3
    flip: bool = False
    rotate: float = 0.0
    shift: float = 0.0
    zoom: float = 0.0
    shear: float = 0.0
    rand_ops: int = 0
    rand_magnitude: float = 9.0
    rand_std: float = 0.5
    rand_limit: float = 10.0
    rand_probability: float = 0.5
    rand_increasing: bool = True
    three_augment: bool = False
    color_jitter: float = 0.0
    hue_jitter: float = 0.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_switch: float = 0.5
    repeats: int = 1
    augment_interpolation: Literal["bilinear", "bicubic"] = "bilinear"
