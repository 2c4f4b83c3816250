"""The labels in a column of a table: texts, whole numbers, indices of names, or lists of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import (
    Labels,
    SingleLabels,
    UnlabeledError,
    check_classes,
    check_length,
    index_labels,
)
from vitlab.errors import DataError

COLUMNS = ("label", "labels", "class", "target", "fine_label")


def labels_of(
    rows: Any, title: str, classes: Sequence[str] | None, column: str = ""
) -> tuple[Labels, tuple[str, ...]]:
    """Return the labels of a `datasets.Dataset`, and the classes that they index.

    Args:
        rows: the data set
        title: what to call it in an error
        classes: the class index to follow; None for the data's own
        column: of the labels; empty to find it

    Raises:
        DataError: no column of labels, or labels that fit no class.
    """
    import datasets

    column = column or label_columns(rows.features, title)[0]
    kind = rows.features[column]
    if isinstance(kind, datasets.List):
        return _several(rows, column, title, classes)
    check_labeled(rows, column, title)
    cells = rows.select_columns([column]).with_format("arrow")[:][column]
    if isinstance(kind, datasets.ClassLabel):
        names, values = list(kind.names), cells.to_numpy()
    else:  # numbers or words without names: a class for each that occurs
        _check_plain(cells, column, title)
        found = cells.to_pylist()
        distinct = sorted(set(found))
        names = [str(value) for value in distinct]
        check_length(names, title)
        place = {value: number for number, value in enumerate(distinct)}
        values = np.array([place[value] for value in found], np.int64)
    labels = SingleLabels(np.asarray(values, np.int64))
    if not labels.fit(len(names)):
        outside = [int(label) for label in labels.values if not 0 <= label < len(names)]
        raise DataError(f"{title}: label {outside[0]} is not one of its {len(names)} classes")
    if classes is None:
        return labels, tuple(names)
    return SingleLabels(_by_name(labels.values, names, classes, title)), tuple(classes)


def label_columns(features: Any, title: str) -> list[str]:
    """Return the columns that may hold the labels, the likeliest first.

    Raises:
        UnlabeledError: there are none.
    """
    import datasets

    named = [key for key in COLUMNS if key in features]
    typed = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if not named + typed:
        raise UnlabeledError(
            f"{title} has no label column; its columns are {', '.join(features)}: name one with "
            "--label-column"
        )
    return list(dict.fromkeys(named + typed))


def _several(
    rows: Any, column: str, title: str, classes: Sequence[str] | None
) -> tuple[Labels, tuple[str, ...]]:
    """The labels of a column of lists: texts, whole numbers, or indices of names."""
    import datasets

    inner = rows.features[column].feature
    names = inner.names if isinstance(inner, datasets.ClassLabel) else None
    found = rows.select_columns([column]).with_format(None)[:][column]
    own = [tuple(each) if each is not None else () for each in found]
    if not all(type(label) in (str, int) for labels in own for label in labels):
        raise DataError(f"{title}: the lists of column {column!r} must hold texts or whole numbers")
    return index_labels([tuple(map(str, each)) for each in own], title, classes, names)


def _check_plain(cells: Any, column: str, title: str) -> None:
    """Refuse a column whose values cannot be labels: dates, records, fractions."""
    import pyarrow as pa

    kind = cells.type
    if pa.types.is_floating(kind):
        values = cells.to_numpy()
        plain = bool((values == np.rint(values)).all() and np.isfinite(values).all())
        kind = kind if plain else f"{kind}, with fractions"
    else:
        tests = pa.types.is_integer, pa.types.is_string, pa.types.is_large_string
        plain = any(test(kind) for test in (*tests, pa.types.is_boolean))
    if not plain:
        raise DataError(
            f"{title}: column {column!r} has values of type {kind}; labels are texts, whole "
            "numbers, or lists of them"
        )


def check_labeled(rows: Any, column: str, title: str) -> None:
    """Refuse rows without a label.

    Raises:
        DataError: the first such row.
    """
    cells = rows.select_columns([column]).with_format("arrow")[:][column]
    without = np.flatnonzero(cells.is_null(nan_is_null=True).to_numpy())
    if len(without):
        raise DataError(
            f"{title}: row {without[0]} has no label ({len(without):,} of {len(rows):,} rows): "
            "remove such rows, or label them"
        )


def _by_name(
    values: NDArray[np.int64], names: list[str], classes: Sequence[str], title: str
) -> NDArray[np.int64]:
    """Map labels that index `names` to indices of `classes`."""
    check_classes([names[value] for value in np.unique(values)], classes, title)
    place = {name: number for number, name in enumerate(classes)}
    return np.array([place.get(name, -1) for name in names], np.int64)[values]
