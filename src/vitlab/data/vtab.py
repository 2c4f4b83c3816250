"""VTAB-1k: 19 tasks of 1,000 training images each; where their images lie, and their labels.

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

Zhai et al., A large-scale study of representation learning with the visual task adaptation
benchmark, 2019; splits and labels as in the authors' code (google-research/task_adaptation).
"""

import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.pixels import Pixels
from vitlab.data.labels import SingleLabels
from vitlab.data.sources.folders import Files, open_folder
from vitlab.data.sources.paths import Inside, Names
from vitlab.data.sources.request import NAMES, Found, Part, Request
from vitlab.data.sources.source import Altered, Joined, Relabeled, Source, reindexed
from vitlab.data.sources.tables import LABELS, SAVED, load_tables, places, unlabeled
from vitlab.errors import DataError
from vitlab.files import read_bytes
from vitlab.options import nearest

WHOLE, SEARCH = "vtab:", "vtab-search:"
SOURCES = "sources.toml"
LISTS = ("train800.txt", "val200.txt", "test.txt")
LARGEST = 2**26  # bytes of a list
TRAIN, VALIDATION = 800, 200  # images
FEWEST_OBJECTS = 3  # in an image of CLEVR
CLEVR_EDGES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_EDGES = (-100.0, 8.0, 20.0, 999.0)
VEHICLES = ("car", "van", "truck")  # types 0, 1 and 2
NO_VEHICLE = 1000.0  # meters
BINS = 16  # of dSprites, which has 32 positions and 40 orientations

Scenes = list[list[dict[str, Any]]]
"""The objects of each image."""


def clevr_count(scenes: Scenes) -> list[int]:
    """Return the number of objects less 3: 8 classes."""
    return [len(own) - FEWEST_OBJECTS for own in scenes]


def clevr_distance(scenes: Scenes) -> list[int]:
    """Return the bin of the depth of the closest object: 6 classes, bins (edge, next edge]."""
    depths = (min(each["pixel_coords"][2] for each in own) for own in scenes)
    return [bisect_left(CLEVR_EDGES, depth) - 1 for depth in depths]


def kitti_distance(scenes: Scenes) -> list[int]:
    """Return the bin of the distance of the closest car, van or truck: 3 classes, and none."""

    def is_vehicle(kind: str | int) -> bool:
        return kind.lower() in VEHICLES if isinstance(kind, str) else kind < len(VEHICLES)

    distances = (
        min([NO_VEHICLE, *(each["location"][2] for each in own if is_vehicle(each["type"]))])
        for own in scenes
    )
    return [bisect_left(KITTI_EDGES, distance) - 1 for distance in distances]


def brightened(image: Pixels) -> Pixels:
    """Widen images of zeros and ones, as dSprites stores them, to 0 and 255."""
    return image * np.uint8(255) if image.max(initial=0) <= 1 else image


GROUPS = ("natural", "specialized", "structured")


@dataclass(frozen=True)
class VtabTask:
    """One task. The parts are those of TensorFlow Datasets, in its order.

    Attributes:
        name: of the command line and of its folder
        title: as the ViT paper's Table 9 heads its column
        group: natural, specialized or structured
        classes: number of classes
        validation: 200 images to choose by
        test: the images that count
        column: of a table, that the label is made of; where it is absent, the label is stored
        made: the classes of all values of that column; of objects, a list of them for each image
        folders: other names that its folder may have
        flip: whether mirroring keeps the label (BiT paper, appendix F)
        crop: whether a random crop keeps the label (the same)
    """

    name: str
    title: str
    group: str
    classes: int
    validation: str = "validation[:200]"
    test: str = "test"
    column: str = ""
    made: Callable[[Any], Any] = list
    folders: tuple[str, ...] = ()
    flip: bool = True
    crop: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes; with the task's, so that no other model's classifier is taken over."""
        return tuple(f"{self.name} {number}" for number in range(self.classes))

    def label(self, rows: Any) -> NDArray[np.int64]:
        """Return the classes of the rows of a table.

        Raises:
            DataError: it has no column of labels, or one without whole numbers.
        """
        name = next((each for each in (self.column, *LABELS) if each in rows.features), None)
        if name is None:
            raise DataError(f"no label column; the columns are {', '.join(rows.features)}")
        if name == "objects":  # stored as a list of records, or as a record of lists
            scenes = [
                [dict(zip(own, each, strict=True)) for each in zip(*own.values(), strict=True)]
                if isinstance(own, dict)
                else own
                for own in rows.select_columns([name])[:][name]
            ]
            return np.array(self.made(scenes), np.int64)
        values = np.asarray(rows.select_columns([name]).with_format("numpy")[:][name])
        if values.dtype.kind not in "biu" or values.ndim != 1:
            raise DataError(f"column {name} must contain whole numbers")
        numbers = values.astype(np.int64)
        return np.asarray(self.made(numbers)) if name == self.column else numbers


FIRST = "train[:800]"  # to learn from
DSPRITES = ("train[589824:590024]", "train[663552:]")
NORB = ("test[:200]", "test[50%:]")

TASKS: tuple[VtabTask, ...] = (
    VtabTask("caltech101", "Caltech101", "natural", 102, "train[2754:2954]"),
    VtabTask("cifar100", "CIFAR-100", "natural", 100, "train[45000:45200]", folders=("cifar",)),
    VtabTask("dtd", "DTD", "natural", 47),
    VtabTask("oxford_flowers102", "Flowers102", "natural", 102),
    VtabTask("oxford_iiit_pet", "Pets", "natural", 37, "train[2944:3144]"),
    VtabTask("sun397", "Sun397", "natural", 397),
    VtabTask("svhn", "SVHN", "natural", 10, "train[65931:66131]", folders=("svhn_cropped",)),
    VtabTask("patch_camelyon", "Camelyon", "specialized", 2),
    VtabTask("eurosat", "EuroSAT", "specialized", 10, "train[16200:16400]", "train[21600:]"),
    VtabTask("resisc45", "Resisc45", "specialized", 45, "train[18900:19100]", "train[25200:]"),
    VtabTask("diabetic_retinopathy", "Retinopathy", "specialized", 5),
    VtabTask(
        "clevr_count", "Clevr-Count", "structured", 8, "train[63000:63200]", "validation",
        "objects", clevr_count, ("clevr_count_all", "clevr"), crop=False,
    ),
    VtabTask(
        "clevr_dist", "Clevr-Dist", "structured", 6, "train[63000:63200]", "validation",
        "objects", clevr_distance, ("clevr_closest_object_distance", "clevr"), crop=False,
    ),
    VtabTask("dmlab", "DMLab", "structured", 6, crop=False),
    VtabTask(
        "dsprites_loc", "dSpr-Loc", "structured", 16, *DSPRITES,
        "label_x_position", lambda position: position * BINS // 32,
        ("dsprites_label_x_position", "dsprites"), flip=False, crop=False,
    ),
    VtabTask(
        "dsprites_ori", "dSpr-Ori", "structured", 16, *DSPRITES,
        "label_orientation", lambda orientation: orientation * BINS // 40,
        ("dsprites_label_orientation", "dsprites"), flip=False,
    ),
    VtabTask(
        "kitti", "KITTI-Dist", "structured", 4, "validation[:200]", "test",
        "objects", kitti_distance, ("kitti_closest_vehicle_distance",), crop=False,
    ),
    VtabTask(
        "smallnorb_azi", "sNORB-Azim", "structured", 18, *NORB,
        "label_azimuth", folders=("smallnorb_label_azimuth", "smallnorb"), flip=False,
    ),
    VtabTask(
        "smallnorb_ele", "sNORB-Elev", "structured", 9, *NORB,
        "label_elevation", folders=("smallnorb_label_elevation", "smallnorb"),
    ),
)  # fmt: skip
"""In the order of the ViT paper's Table 9."""

BY_NAME = {task.name: task for task in TASKS}


def open_vtab(request: Request) -> Found | None:
    """Open a task named `vtab:ROOT/TASK` or `vtab-search:ROOT/TASK`; None for other data.

    Raises:
        DataError: an unknown task, no data for it, or parts of other sizes than VTAB-1k's.
    """
    prefix, colon, place = request.data.partition(":")
    if prefix + colon not in (WHOLE, SEARCH):
        return None
    path = Path(place).expanduser()
    if path.name not in BY_NAME:
        raise DataError(f"unknown VTAB task {path.name!r}: {nearest(path.name, BY_NAME)}")
    train, validation, test = open_task(path.parent, BY_NAME[path.name])
    if request.classes and request.classes != train.classes:
        raise DataError(f"the classes of {request.data} are not the model's")
    if prefix + colon == SEARCH:
        return Found([Part(train, "train"), Part(validation, "test")])
    return Found([Part(Joined((train, validation)), "train"), Part(test, "test")])


def available(root: Path) -> dict[str, Path | str]:
    """Return where the data of each task is, by the task's name; tasks without data are absent.

    Raises:
        DataError: no such folder, or `sources.toml` is damaged or names an unknown task.
    """
    if not root.is_dir():
        raise DataError(f"no such folder: {root}")
    found: dict[str, Path | str] = dict(_sources(root / SOURCES))
    for task in TASKS:
        for name in (task.name, *task.folders):
            if task.name not in found and (root / name).is_dir():
                found[task.name] = root / name
    return found


def _sources(file: Path) -> dict[str, str]:
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


def open_task(root: Path, task: VtabTask) -> list[Source]:
    """Return the 800 training, the 200 validation and the test images of a task.

    Raises:
        DataError: no data for it, or parts of other sizes than VTAB-1k's.
    """
    place = available(root).get(task.name)
    if place is None:
        raise DataError(f"{root} has no folder {task.name}, nor a line for it in {SOURCES}")
    folder = place if isinstance(place, Path) else None
    if folder and (folder / LISTS[-1]).is_file():
        parts = [_list(folder / name, task) for name in LISTS]
    elif folder and (folder / "train").is_dir() and not (folder / SAVED).is_file():
        parts = _class_folders(folder, task)
    else:
        parts = _tables(str(place), task)
    for part, size, what in zip(parts, (TRAIN, VALIDATION), ("training", "validation")):  # noqa: B905
        if len(part) != size:
            raise DataError(f"{place} has {len(part):,} {what} images; VTAB-1k has {size}")
    if task.name.startswith("dsprites"):
        return [Altered(part, brightened) for part in parts]
    return parts


def _list(file: Path, task: VtabTask) -> Source:
    """Return the images that a list of `path label` names."""
    try:
        lines = read_bytes(file, LARGEST).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    paths, labels = [], []
    for number, line in enumerate(filter(None, map(str.strip, lines)), 1):
        found = re.fullmatch(r"(.*\S)\s* ([0-9]{1,9})", line)
        if not found or int(found[2]) >= task.classes:
            raise DataError(
                f"{file} line {number}: {line[:80]!r} is not a path and a class from 0 to "
                f"{task.classes - 1}"
            )
        path = found[1]
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise DataError(f"{file} line {number} names {path[:80]!r}, outside of its folder")
        paths.append(path)
        labels.append(int(found[2]))
    if missing := [path for path in paths if not (file.parent / path).is_file()]:
        raise DataError(
            f"{len(missing):,} of the {len(paths):,} files listed in {file} do not exist, such as "
            f"{missing[0]} (paths are relative to {file.parent})"
        )
    values = SingleLabels(np.array(labels, np.int64))
    return Files(file.parent, Names.of(paths), values, task.names)


def _class_folders(folder: Path, task: VtabTask) -> list[Source]:
    """Return the images of train/, val/ and test/, each of class folders."""
    found = open_folder(Request(str(folder)))
    parts = {part.split: part.source for part in found.parts} if found else {}
    for split, names in NAMES.items():
        if split not in parts:
            raise DataError(f"{folder} has no folder of {split} images: add {names[0]}/")
    known = {name for part in parts.values() for name in part.classes}
    by_value = {name: int(name) if name.isdecimal() else -1 for name in known}
    classes = sorted(known, key=lambda name: (by_value[name], name))
    if len(classes) != task.classes:
        raise DataError(f"{folder} has {len(classes)} classes; {task.name} has {task.classes}")
    return [reindexed(parts[split], classes, str(folder)) for split in NAMES]


def _tables(place: str, task: VtabTask) -> list[Source]:
    """Return the images of tables: as they are if they have 800 and 200 rows, else cut out."""
    tables = load_tables(place)
    rows = {
        split: next((tables[name] for name in names if name in tables), ())
        for split, names in NAMES.items()
    }
    whole = (len(rows["train"]), len(rows["validation"])) != (TRAIN, VALIDATION)
    parts = (FIRST, task.validation, task.test) if whole else tuple(NAMES)
    return [_part(part, rows, task, place) for part in parts]


def _part(part: str, rows: dict[str, Any], task: VtabTask, place: str) -> Source:
    """Return one part, such as `train[63000:63200]` or `test[50%:]`, of tables by their split."""
    found = re.fullmatch(r"(\w+)(?:\[(\d*)(%?):(\d*)\])?", part)
    assert found
    split, start, percent, end = found.groups()
    table, total = rows[split], len(rows[split])
    if not total:
        raise DataError(f"{place} has no {split} rows, which {task.name} needs for {part}")
    first = int(start or 0) * total // 100 if percent else int(start or 0)
    last = int(end or total)
    if first >= total or last > total:
        raise DataError(f"{place} has {total:,} {split} rows: too few for {part}")
    table = table.select(range(first, last))
    try:
        labels = SingleLabels(task.label(table))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise DataError(f"{place}: cannot make the label of {task.name}: {error}") from None
    if not labels.fit(task.classes):
        wrong = [label for label in labels.values.tolist() if not 0 <= label < task.classes]
        raise DataError(f"{place}: class {wrong[0]} is outside 0 to {task.classes - 1}")
    images = unlabeled(table, f"{place} {part}", Inside(places(place)))
    return Relabeled(images, labels, task.names)
