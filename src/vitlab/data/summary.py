"""Facts about a data set before training: the image size that suits it, and its classes."""

import math
from contextlib import suppress

import numpy as np

from vitlab.data.decode.spectrograms import BINS, FRAMES
from vitlab.data.images import Images
from vitlab.data.splits import Splits
from vitlab.errors import ImageError
from vitlab.images import Size

SAMPLES = 64  # images whose headers are read
SMALL = 256  # pixels per side up to which images of one size are used at their own size
USUAL = 224
WHOLE = 16  # columns that usual patches divide


def input_shape(source: Images) -> tuple[Size, int]:
    """Return the image size and channels that fit a source.

    Images that all have one small size keep it, others are resized to 224x224; one channel if all
    are gray, else three. The headers of 64 images are read, evenly spaced. Sounds have AST's rows,
    and columns for the longest of them, 10.24 seconds at most.
    """
    shapes: set[tuple[int, int, int]] = set()
    places = np.linspace(0, len(source) - 1, num=min(SAMPLES, len(source)), dtype=int)
    for index in np.unique(places):
        with suppress(ImageError):  # reported when it is decoded
            shapes.add(source.image(int(index)).shape())
    sizes = {(rows, columns) for rows, columns, _ in shapes}
    channels = max((channels for _, _, channels in shapes), default=3)
    if of_sounds(source):
        longest = max((columns for _, columns in sizes), default=FRAMES)
        return (BINS, min(FRAMES, -(-longest // WHOLE) * WHOLE)), 1
    if len(sizes) != 1 or max(size := next(iter(sizes))) > SMALL:
        return USUAL, channels
    rows, columns = size
    return rows if rows == columns else size, channels


def of_sounds(source: Images) -> bool:
    """Return whether the first image that can be read is a sound."""
    for index in range(min(SAMPLES, len(source))):
        with suppress(ImageError):
            return source.image(index).is_sound
    return False


def divided(size: Size, patch: int, least: int = 1) -> tuple[Size, list[str]]:
    """Return the image size nearest to another that a patch divides, and a remark if it differs.

    Args:
        size: in pixels
        patch: side in pixels
        least: patches that each side must have
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    near = [max(least, math.floor(side / patch + 0.5)) * patch for side in (rows, columns)]
    if near == [rows, columns]:
        return size, []
    return (near[0], near[1]), [
        f"images of {rows}x{columns} pixels are resized to {near[0]}x{near[1]}, which the patch of "
        f"{patch} divides"
    ]


FEW = 12  # classes that are listed with their counts
SHOWN = 3  # classes that are listed as missing


def class_lines(splits: Splits) -> list[str]:
    """Return lines with the number of training images of each class, and what guessing gives."""
    found = splits.train.counts()
    fewest = min(found, key=found.__getitem__)
    most = max(found, key=found.__getitem__)
    names = f"{len(found):,} classes"
    if len(found) <= FEW:
        each = (f"{name} {count:,}" for name, count in found.items())
        lines = [f"training images per class: {', '.join(each)}"]
    elif found[fewest] == found[most]:
        lines = [f"{names} with {found[most]:,} training images each"]
    else:
        lines = [
            f"{names}, the smallest with {found[fewest]:,} training images ({fewest}), the largest "
            f"with {found[most]:,} ({most})"
        ]
    if (usual := most_frequent(splits)) is not None:
        name, share = usual
        lines.append(f"always answering {name!r} would be right for {share:.1%} of the test images")
    return lines


def missing_lines(splits: Splits) -> list[str]:
    """Return a line for each split that lacks classes; which training lacks is said only there."""
    words = {"train": "training"}
    lines = []
    said = set[str]()
    for part, source in splits.parts.items():
        found = source.counts()
        lacking = [name for name in found if not found[name] and name not in said]
        if part == "train":
            said.update(lacking)
        if not lacking:
            continue
        if len(lacking) > SHOWN:
            which = f"{len(lacking):,} classes: {', '.join(lacking[:SHOWN])}, …"
        else:
            *first, last = lacking
            which = f"the classes {', '.join(first)} and {last}" if first else f"the class {last}"
        lines.append(f"the {words.get(part, part)} images have none of {which}")
    return lines


def most_frequent(splits: Splits) -> tuple[str, float] | None:
    """Return the largest class of the training images, and its share of the test images.

    None where images have several labels.
    """
    labels = splits.test.target
    if labels.several:
        return None
    largest = int(np.argmax(splits.train.target.counts(len(splits.classes))))
    return splits.classes[largest], labels.counts(len(splits.classes))[largest] / len(labels)
