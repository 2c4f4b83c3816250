"""The options of a recipe that concern its data and how training images are augmented."""

import re
from dataclasses import dataclass
from typing import Literal

from vitlab.errors import OptionError
from vitlab.options import (
    Bound,
    Only,
    Options,
    above,
    at_least,
    at_most,
    below,
    option,
    when,
    when_any,
)

PROBABILITY = (at_least(0), at_most(1))
AnnotationFrame = Literal["auto", "upright", "stored"]


@dataclass(frozen=True, kw_only=True)
class Columns(Options):
    """Columns of a list of images (default: found by their names and content)."""

    path_column: str = option("", "column of the paths in a .csv, .tsv or .jsonl list")
    label_column: tuple[str, ...] = option(
        (), "column of the labels; several columns of 0 and 1 are a class each"
    )
    label_separator: str = option("", "separator of several labels in one cell, such as '|'")
    split_column: str = option(
        "", "column of the splits, train, val and test ('none': hold images out instead)"
    )
    images: str = option(
        "", "folder of the images that a list, or a Parquet file, names (default: that of the list)"
    )
    class_folder: Literal["auto", "outer", "inner"] = option(
        "auto",
        "folder that names the class where class folders are in or around others: the outermost, "
        "or the one that holds the image",
    )
    group_column: str = option(
        "", "column of groups (a patient, a scene, a day), whose images stay on one side of a split"
    )
    allow_outside: bool = option(
        False,
        "read images that a list or a Parquet file names outside of that folder: of data you trust",
    )
    annotation_frame: AnnotationFrame = option(
        "auto",
        "where EXIF turns a photo, what boxes and masks were drawn on: upright, the photo as it is "
        "seen; stored, its pixels as they are stored; auto, what the sides beside them say",
    )
    cache_data: str = option(
        "", "folder that keeps images read over a network, for later epochs and runs"
    )
    cache_gb: float = option(
        20.0,
        "gigabytes of that folder, at most: the least recently used are removed",
        above(0),
        only=when("cache_data"),
    )


@dataclass(frozen=True, kw_only=True)
class Data(Columns):
    """The images to learn from."""

    data: str = option(
        "",
        "digits, a folder of class folders (with train/ and val/ or test/, or without), Parquet "
        "files, WebDataset shards (glob or brace range, local or s3://, https://, hf://), a .csv "
        "or .jsonl list of paths, or a Hugging Face data set (user/name)",
        positional=True,
        check="data",
    )
    test_fraction: float = option(
        0.2,
        "share of each class held out for testing if the data has no such split",
        above(0),
        below(1),
    )
    dev_share: float = option(
        0.0,
        "share of each class of the training images to test on in place of the test images, as a "
        "sweep does (0: none)",
        at_least(0),
        below(1),
    )
    drop_duplicates: bool = option(
        False,
        "leave near-duplicates of test and validation images out of training (ViT paper, section "
        "4.1)",
    )
    fold: str = option(
        "",
        "part to test on in k-fold cross-validation, as 2/5: the second of five parts of the "
        "training images, or of all images where the data comes unsplit (empty: off)",
    )
    train_images: int | float = option(
        0,
        "train on so many of the training images, or on this share of them (0.1 or 10%), the same "
        "share of each class; always the same images, and those of a smaller number are among them "
        "(0: all)",
        Bound("at least 0, whole from 1 on", lambda n: bool(n >= 0 and (n < 1 or n == int(n)))),
    )

    def __post_init__(self) -> None:
        """Check every field, and that at most one of them says what to test on."""
        super().__post_init__()
        part_of(self.fold)
        if self.fold and self.dev_share:
            raise OptionError("fold and dev_share exclude each other: set one of them")


def part_of(fold: str) -> tuple[int, int]:
    """Return the number of a part, from 1, and how many there are; (0, 0) for an empty text.

    Raises:
        OptionError: not a part, as 2/5.
    """
    if not fold:
        return 0, 0
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", fold)
    part, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part <= parts or parts < 2:
        raise OptionError(f"fold must be a part of at least two, such as 2/5, not {fold!r}")
    return part, parts


@dataclass(frozen=True, kw_only=True)
class Augment(Options):
    """Augmentation of training images, drawn independently for each sample and epoch."""

    area: float = option(
        1.0,
        "smallest share of the image that a random crop keeps (1: no crop)",
        above(0),
        at_most(1),
    )
    aspect: float = option(
        4 / 3,
        "largest factor by which a random crop changes the aspect ratio",
        at_least(1),
        only=Only("with area below 1", lambda options: options.area < 1),
    )
    flip: bool = option(False, "mirror left and right with probability 0.5")
    rotate: float = option(0.0, "largest rotation either way, in degrees", at_least(0))
    shift: float = option(0.0, "largest translation, as a share of each side", at_least(0))
    zoom: float = option(0.0, "largest change of scale either way; 0.1 for 10 percent", at_least(0))
    shear: float = option(0.0, "largest shear either way, in degrees", at_least(0), below(90))
    rand_ops: int = option(
        0, "RandAugment operations per image (0: none)", at_least(0), at_most(15)
    )
    rand_magnitude: float = option(
        9.0, "mean magnitude of RandAugment, usually up to 10", at_least(0), only=when("rand_ops")
    )
    rand_std: float = option(
        0.5, "standard deviation of the magnitude", at_least(0), only=when("rand_ops")
    )
    rand_limit: float = option(
        10.0, "upper limit of the drawn magnitude", at_least(0), only=when("rand_ops")
    )
    rand_probability: float = option(
        0.5, "probability of each RandAugment operation", *PROBABILITY, only=when("rand_ops")
    )
    rand_increasing: bool = option(
        True,
        "every operation becomes stronger with the magnitude (timm's inc1)",
        only=when("rand_ops"),
    )
    three_augment: bool = option(
        False, "grayscale, solarize or blur, one of the three per image (DeiT III)"
    )
    color_jitter: float = option(
        0.0, "largest change of brightness, contrast and saturation, around factor 1", at_least(0)
    )
    saturation_jitter: float | None = option(
        None, "largest change of saturation alone (None: as color_jitter)", at_least(0),
        only=when("color_jitter"),
    )  # fmt: skip
    hue_jitter: float = option(
        0.0, "largest change of hue, as a share of the color circle", at_least(0), at_most(0.5)
    )
    jitter_probability: float = option(
        1.0, "probability of color and hue jitter", *PROBABILITY,
        only=when_any("color_jitter", "hue_jitter"),
    )  # fmt: skip
    grayscale: float = option(
        0.0, "probability that an image loses its colors (SimCLR, DINO)", *PROBABILITY
    )
    blur: float = option(0.0, "probability of a Gaussian blur of 0.1 to 2 pixels", *PROBABILITY)
    solarize: float = option(
        0.0, "probability that all values from 128 on are inverted", *PROBABILITY
    )
    erase: float = option(
        0.0, "probability that a random rectangle is replaced by noise", *PROBABILITY
    )
    mixup: float = option(0.0, "Beta distribution parameter of Mixup (0: off)", at_least(0))
    cutmix: float = option(0.0, "Beta distribution parameter of CutMix (0: off)", at_least(0))
    mix_switch: float = option(
        0.5,
        "probability of CutMix rather than Mixup, per batch",
        *PROBABILITY,
        only=Only(
            "with both mixup and cutmix", lambda options: bool(options.mixup and options.cutmix)
        ),
    )
    repeats: int = option(
        1,
        "augmented copies of each image per epoch (an epoch then covers 1/repeats of the images)",
        at_least(1),
    )
    augment_interpolation: Literal["bilinear", "bicubic"] = option(
        "bilinear",
        "interpolation of rotation, translation, scaling and shear",
        only=when_any("rotate", "shift", "zoom", "shear", "rand_ops"),
    )

    def __post_init__(self) -> None:
        """Check every field, and that there is one policy at most."""
        super().__post_init__()
        if self.rand_ops and self.three_augment:
            raise OptionError("rand_ops and three_augment exclude each other: set one of them")
