"""Class indices: the classes that labels name, in order, and the number of each label there."""

from collections.abc import Sequence

import numpy as np

from vitlab.data.class_names import spell_name
from vitlab.data.labels import Labels, MultiLabels, SingleLabels, check_classes
from vitlab.data.target import Classes
from vitlab.errors import DataError, OptionError
from vitlab.values import check_names

Label = str | tuple[str, ...] | list[str]
"""The label of one image as data spells it: one class, or any number of them."""


def index_labels(
    raw: Sequence[Label], title: str, names: Sequence[str] | None = None
) -> tuple[Labels, Classes]:
    """Return labels as indices of a list of classes, and that list.

    Args:
        raw: the label of each image; one list among them makes them `MultiLabels`
        title: what to call the data in an error
        names: the classes, which whole numbers among the labels index; None for those that occur,
            sorted (numbers by value)

    Raises:
        DataError: a label that is not among `names`, or that several of them are.
    """
    sets = [[label] if isinstance(label, str) else list(label) for label in raw]
    found = dict.fromkeys(label for own in sets for label in own)
    if names is not None:
        names = _spell_all(names)
        known = frozenset(names)
        spelled = {label: _find_name(label, names, known, title) for label in found}
        sets = [[spelled[label] for label in own] for own in sets]
        found = dict.fromkeys(spelled.values())
    order = tuple(names or sorted(found, key=by_value))
    check_classes(found, order, title)
    place = {name: number for number, name in enumerate(order)}
    if all(isinstance(label, str) for label in raw):
        return SingleLabels(np.array([place[own[0]] for own in sets], np.int64)), order
    return MultiLabels.of_sets([[place[label] for label in own] for own in sets], len(order)), order


def _spell_all(names: Sequence[str]) -> Sequence[str]:
    """Return the names of classes as labels are compared, unless two would be one."""
    spelled = [*map(spell_name, names)]
    return spelled if len({*spelled}) == len(spelled) else names


def check_class_names(names: Sequence[str], title: str, what: str = "class") -> None:
    """Refuse names that no model could have, as those of folders are refused.

    Args:
        names: of classes or columns, in order
        title: what to call the data
        what: each of them is

    Raises:
        DataError: a name is empty, very long, there twice, or has a control character.
    """
    try:
        check_names(names, what)
    except OptionError as error:
        raise DataError(f"{title}: {error}") from None


def _find_name(label: str, names: Sequence[str], known: frozenset[str], title: str) -> str:
    """Return the name that a label indexes, or is: one of those that are known."""
    if label in known and not label.isdecimal():
        return label
    if label.isdecimal() and int(label) < len(names):
        return names[int(label)]
    raise DataError(f"{title}: label {label!r} is not one of its {len(names)} classes")


def by_value(label: str) -> tuple[int, int, str]:
    """Sort whole numbers first, by value; then words."""
    is_whole = label.removeprefix("-").isdecimal()
    return (0, int(label), label) if is_whole else (1, 0, label)
