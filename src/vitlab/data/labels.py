"""From the labels as data spells them to a class index.

One label an image gives int64 (n,); lists of labels give a table of zeros and ones, uint8 (n, K).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import UserError

Labels = NDArray[np.integer[Any]]
"""int64 (n,), or uint8 (n, K)."""

Label = str | tuple[str, ...] | list[str]
"""One label, or any number of them."""


def index_labels(
    raw: Sequence[Label],
    title: str,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[Labels, tuple[str, ...]]:
    """Labels as places in a list of classes, and that list.

    Args:
        raw: what the data says of each image; one list among them makes all of them lists
        title: what to call the data in an error
        classes: the class index to follow; None for the data's own, in order (numbers by value)
        names: what whole numbers among the labels count, where the data says so

    Raises:
        ValueError: a label that is none of `names`, or of the classes.
    """
    sets = [[label] if isinstance(label, str) else list(label) for label in raw]
    if names is not None:
        spelt = {label: _name(label, names, title) for own in sets for label in own}
        sets = [[spelt[label] for label in own] for own in sets]
    found = {label for own in sets for label in own}
    order = tuple(classes or names or sorted(found, key=_by_value))
    place = {name: number for number, name in enumerate(order)}
    if strange := sorted(found - set(place)):
        raise UserError(f"{title} has the class {strange[0]!r}, which the training images have not")
    if all(isinstance(label, str) for label in raw):
        return np.array([place[own[0]] for own in sets], np.int64), order
    table = np.zeros((len(sets), len(order)), np.uint8)
    for row, own in enumerate(sets):
        table[row, [place[label] for label in own]] = 1
    return table, order


def is_multi(labels: Labels) -> bool:
    """Whether images may have several labels each: (n, K) rather than (n,)."""
    return labels.ndim == 2


def _name(label: str, names: Sequence[str], title: str) -> str:
    """A label that counts the names, or is one of them."""
    if label in names and not label.isdecimal():
        return label
    if label.isdecimal() and int(label) < len(names):
        return names[int(label)]
    raise UserError(f"{title}: label {label!r} is none of its {len(names)} classes")


def _by_value(label: str) -> tuple[int, int, str]:
    """Whole numbers first, by value; then words."""
    return (0, int(label), label) if label.isdecimal() else (1, 0, label)
