"""What the data part of a recipe can say. No PyTorch here."""

from dataclasses import dataclass
from typing import Annotated

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
    """

    area: float = 1.0
    aspect: float = 4 / 3
    flip: bool = False
    rotate: float = 0.0
    shift: float = 0.0
    zoom: float = 0.0
    shear: float = 0.0
