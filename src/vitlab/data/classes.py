"""What there is to tell about the classes of some data before training."""

import numpy as np

from vitlab.data.sources.protocol import counts
from vitlab.data.sources.splits import Splits

FEW = 12  # classes that are listed with their counts
SHOWN = 3  # classes that are listed as missing


def class_lines(splits: Splits) -> list[str]:
    """Return lines with the number of training images of each class, and what guessing gives."""
    found = counts(splits.train)
    fewest, most = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
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
    words, lines, said = {"train": "training"}, [], set[str]()
    for part, source in splits.parts.items():
        missing = [name for name, count in counts(source).items() if not count]
        lacking = [name for name in missing if name not in said]
        if part == "train":
            said.update(missing)
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
    labels = splits.test.labels
    if labels.several:
        return None
    largest = int(np.argmax(splits.train.labels.counts(len(splits.classes))))
    return splits.classes[largest], labels.counts(len(splits.classes))[largest] / len(labels)
