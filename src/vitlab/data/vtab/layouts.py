"""Opening a task of VTAB-1k below a root folder.

    ROOT/cifar100/train800.txt, val200.txt, test.txt    lists of `path label`, paths relative to
                                                        ROOT/cifar100
    ROOT/cifar100/train/, val/, test/                   class folders: 800, 200 and the test images
    ROOT/cifar100/*.parquet                             tables, their split in the file names
    ROOT/cifar100/dataset_dict.json                     tables, as `datasets` saves them to disk
    ROOT/sources.toml                                   cifar100 = "user/name", a data set of the
                                                        Hugging Face Hub

A table with 800 training and 200 validation rows is taken as it is. Of the whole data set, the
parts that VTAB takes are cut out, in the order of the rows; they are VTAB's own images only if
that is the order of TensorFlow Datasets.

`vtab:ROOT/cifar100` is DATA with these 1,000 images to train on and the test images;
`vtab-search:ROOT/cifar100` has the 800 to train on, and the 200 in place of the test images.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.labels import SingleLabels
from vitlab.data.sources.folders import Files, class_folders
from vitlab.data.sources.paths import Inside, Names
from vitlab.data.sources.request import NAMES, Found, Part, Request
from vitlab.data.sources.source import Altered, Joined, Relabeled, Source
from vitlab.data.sources.tables import SAVED, load_tables, places, unlabeled
from vitlab.data.vtab.tasks import BY_NAME, TASKS, VtabTask, brightened
from vitlab.errors import DataError
from vitlab.files import read_bytes
from vitlab.options import nearest

WHOLE, SEARCH = "vtab:", "vtab-search:"
SOURCES = "sources.toml"
TRAIN, VALIDATION = 800, 200  # images
LARGEST = 2**26  # bytes of a list
LISTS = {"train": "train800.txt", "validation": "val200.txt", "test": "test.txt"}

Parts = tuple[Source, Source, Source]
"""Training, validation and test images."""


def open_vtab(request: Request) -> Found | None:
    """Open a task named `vtab:ROOT/TASK` or `vtab-search:ROOT/TASK`; None for other data.

    Raises:
        DataError: an unknown task, no data for it, or parts of other sizes than VTAB-1k's.
    """
    prefix = next((each for each in (WHOLE, SEARCH) if request.data.startswith(each)), None)
    if prefix is None:
        return None
    path = Path(request.data.removeprefix(prefix)).expanduser()
    if path.name not in BY_NAME:
        raise DataError(f"unknown VTAB task {path.name!r}: {nearest(path.name, BY_NAME)}")
    train, validation, test = open_task(path.parent, BY_NAME[path.name])
    if request.classes and request.classes != train.classes:
        raise DataError(f"the classes of {request.data} are not the model's")
    if prefix == SEARCH:
        return Found([Part(train, "train"), Part(validation, "test")])
    return Found([Part(Joined((train, validation)), "train"), Part(test, "test")])


def available(root: Path) -> dict[str, Path | str]:
    """Return where the data of each task is, by the task's name; tasks without data are absent.

    Raises:
        DataError: no such folder, or `sources.toml` is damaged or names an unknown task.
    """
    if not root.is_dir():
        raise DataError(f"no such folder: {root}")
    found: dict[str, Path | str] = dict(_sources(root))
    for task in TASKS:
        for name in (task.name, *task.folders):
            if task.name not in found and (root / name).is_dir():
                found[task.name] = root / name
    return found


def _sources(root: Path) -> dict[str, str]:
    file = root / SOURCES
    if not file.is_file():
        return {}
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    for name, value in table.items():
        if name not in BY_NAME:
            raise DataError(f"{file}: unknown task {name!r}: {nearest(name, BY_NAME)}")
        if not isinstance(value, str):
            raise DataError(f'{file}: {name} must be a name, such as {name} = "user/name"')
    return table


def open_task(root: Path, task: VtabTask) -> Parts:
    """Return the 800 training, the 200 validation and the test images of a task.

    Raises:
        DataError: no data for it, or parts of other sizes than VTAB-1k's.
    """
    place = available(root).get(task.name)
    if place is None:
        raise DataError(f"{root} has no folder {task.name}, nor a line for it in {SOURCES}")
    if isinstance(place, Path) and (place / LISTS["test"]).is_file():
        parts = _lists(place, task)
    elif isinstance(place, Path) and _has_class_folders(place):
        parts = _class_folders(place, task)
    else:
        parts = _tables(place, task)
    for part, size, what in zip(parts, (TRAIN, VALIDATION), ("training", "validation")):  # noqa: B905
        if len(part) != size:
            raise DataError(f"{place} has {len(part):,} {what} images; VTAB-1k has {size}")
    if task.name.startswith("dsprites"):
        train, validation, test = (Altered(part, brightened) for part in parts)
        return train, validation, test
    return parts


def _lists(folder: Path, task: VtabTask) -> Parts:
    train, validation, test = (_list(folder / name, task) for name in LISTS.values())
    return train, validation, test


def _list(file: Path, task: VtabTask) -> Source:
    """Return the images that a list of `path label` names."""
    try:
        lines = read_bytes(file, LARGEST).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    paths, labels = [], []
    for number, line in enumerate(filter(str.strip, lines), 1):
        path, _, label = line.strip().rpartition(" ")
        if not path or not re.fullmatch("[0-9]{1,9}", label) or int(label) >= task.classes:
            raise DataError(
                f"{file} line {number}: {line.strip()[:80]!r} is not a path and a class from 0 to "
                f"{task.classes - 1}"
            )
        path = path.strip()
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise DataError(f"{file} line {number} names {path[:80]!r}, outside of its folder")
        paths.append(path)
        labels.append(int(label))
    if missing := [path for path in paths if not (file.parent / path).is_file()]:
        raise DataError(
            f"{len(missing):,} of the {len(paths):,} files listed in {file} do not exist, such as "
            f"{missing[0]} (paths are relative to {file.parent})"
        )
    values = SingleLabels(np.array(labels, np.int64))
    return Files(file.parent, Names.of(paths), values, _numbered(task))


def _has_class_folders(folder: Path) -> bool:
    return (folder / "train").is_dir() and not (folder / SAVED).is_file()


def _class_folders(folder: Path, task: VtabTask) -> Parts:
    """Return the images of train/, val/ and test/, each of class folders."""
    found = []
    for split, names in NAMES.items():
        inside = next((folder / name for name in names if (folder / name).is_dir()), None)
        if inside is None:
            raise DataError(f"{folder} has no folder of {split} images: add {names[0]}/")
        found.append(class_folders(inside)[0])
    classes = tuple(sorted({name for files in found for name in files.classes}, key=_by_value))
    if len(classes) != task.classes:
        raise DataError(f"{folder} has {len(classes)} classes; {task.name} has {task.classes}")
    place = {name: number for number, name in enumerate(classes)}
    train, validation, test = (
        Relabeled(
            files,
            SingleLabels(np.array([place[name] for name in files.classes])[files.labels.values]),
            classes,
        )
        for files in found
    )
    return train, validation, test


def _by_value(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isdecimal() else (-1, name)


def _tables(place: Path | str, task: VtabTask) -> Parts:
    """Return the images of tables: as they are if they have 800 and 200 rows, else cut out."""
    tables = load_tables(str(place))
    rows = {split: _named(tables, split) for split in NAMES}
    counts = [len(each) if each is not None else 0 for each in rows.values()]
    if counts[:2] == [TRAIN, VALIDATION]:
        parts = ["train", "validation", "test"]
    else:
        parts = [task.train, task.validation, task.test]
    train, validation, test = (_part(part, rows, task, str(place)) for part in parts)
    return train, validation, test


def _named(tables: Any, split: str) -> Any:
    return next((tables[name] for name in NAMES[split] if name in tables), None)


def _part(part: str, rows: dict[str, Any], task: VtabTask, place: str) -> Source:
    """Return one part, such as `train[63000:63200]` or `test[50%:]`, of tables by their split."""
    found = re.fullmatch(r"(\w+)(?:\[(\d*)(%?):(\d*)\])?", part)
    assert found
    table = rows[found[1]]
    if table is None:
        raise DataError(f"{place} has no {found[1]} rows, which {task.name} needs for {part}")
    total = len(table)
    first = int(found[2] or 0) * total // 100 if found[3] else int(found[2] or 0)
    last = int(found[4]) if found[4] else total
    if first >= total or last > total:
        raise DataError(f"{place} has {total:,} {found[1]} rows: too few for {part}")
    table = table.select(range(first, last))
    try:
        labels = task.label(table)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise DataError(f"{place}: cannot make the label of {task.name}: {error}") from None
    if not SingleLabels(labels).fit(task.classes):
        wrong = labels[(labels < 0) | (labels >= task.classes)][0]
        raise DataError(f"{place}: class {wrong} is outside 0 to {task.classes - 1}")
    images = unlabeled(table, f"{place} {part}", Inside(places(place)))
    return Relabeled(images, SingleLabels(labels), _numbered(task))


def _numbered(task: VtabTask) -> tuple[str, ...]:
    """Name the classes; with the task's name, so that no other model's classifier is taken over."""
    return tuple(f"{task.name} {number}" for number in range(task.classes))
