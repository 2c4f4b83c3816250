"""The 19 tasks of VTAB-1k: their groups, classes, labels, and where their images lie.

Zhai et al., A large-scale study of representation learning with the visual task adaptation
benchmark, 2019; splits and labels as in the authors' code (google-research/task_adaptation). The
parts are those of TensorFlow Datasets, in its order. A table without the columns that a label is
made of may have the label itself, in a column `label`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.pixels import Pixels
from vitlab.errors import DataError

LABELS = ("label", "labels", "class", "target", "fine_label")
FEWEST_OBJECTS = 3  # in an image of CLEVR
CLEVR_EDGES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_EDGES = (-100.0, 8.0, 20.0, 999.0)
VEHICLES = ("car", "van", "truck")  # types 0, 1 and 2
NO_VEHICLE = 1000.0  # meters
BINS = 16  # of dSprites
POSITIONS, ORIENTATIONS = 32, 40  # that dSprites has


def stored(rows: Any) -> NDArray[np.int64]:
    """Return the label column.

    Raises:
        DataError: there is none, or it contains no whole numbers.
    """
    name = next((each for each in LABELS if each in rows.features), None)
    if name is None:
        raise DataError(f"no label column; the columns are {', '.join(rows.features)}")
    return _numbers(rows, name)


def _numbers(rows: Any, name: str) -> NDArray[np.int64]:
    values = np.asarray(rows.select_columns([name]).with_format("numpy")[:][name])
    if values.dtype.kind not in "biu" or values.ndim != 1:
        raise DataError(f"column {name} must contain whole numbers")
    return values.astype(np.int64)


def clevr_count(rows: Any) -> NDArray[np.int64]:
    """Return the number of objects less 3: 8 classes."""
    if "objects" not in rows.features:
        return stored(rows)
    return np.array([len(own) for own in _objects(rows)], np.int64) - FEWEST_OBJECTS


def clevr_distance(rows: Any) -> NDArray[np.int64]:
    """Return the bin of the depth of the closest object: 6 classes."""
    if "objects" not in rows.features:
        return stored(rows)
    depths = [min(each["pixel_coords"][2] for each in own) for own in _objects(rows)]
    return binned(depths, CLEVR_EDGES)


def kitti_distance(rows: Any) -> NDArray[np.int64]:
    """Return the bin of the distance of the closest car, van or truck: 3 classes, and none."""
    if "objects" not in rows.features:
        return stored(rows)
    nearest = [
        min([NO_VEHICLE, *(each["location"][2] for each in own if _is_vehicle(each["type"]))])
        for own in _objects(rows)
    ]
    return binned(nearest, KITTI_EDGES)


def _is_vehicle(kind: str | int) -> bool:
    return kind.lower() in VEHICLES if isinstance(kind, str) else kind < len(VEHICLES)


def binned(values: Sequence[float], edges: Sequence[float]) -> NDArray[np.int64]:
    """Return the number of the last edge below each value: bins (edge, next edge]."""
    return np.searchsorted(edges, values, side="left").astype(np.int64) - 1


def _objects(rows: Any) -> list[list[dict[str, Any]]]:
    """Return the objects of each row, stored as a list of records or as a record of lists."""
    found = rows.select_columns(["objects"])[:]["objects"]
    return [_records(own) if isinstance(own, dict) else own for own in found]


def _records(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _column(rows: Any, name: str) -> NDArray[np.int64]:
    return _numbers(rows, name) if name in rows.features else stored(rows)


def _grouped(rows: Any, name: str, values: int) -> NDArray[np.int64]:
    """Return a column of `values` different numbers in 16 groups of neighbors."""
    return _numbers(rows, name) * BINS // values if name in rows.features else stored(rows)


Adapter = Callable[[Any], NDArray[np.int64]]
dsprites_position: Adapter = partial(_grouped, name="label_x_position", values=POSITIONS)
dsprites_orientation: Adapter = partial(_grouped, name="label_orientation", values=ORIENTATIONS)
norb_azimuth: Adapter = partial(_column, name="label_azimuth")
norb_elevation: Adapter = partial(_column, name="label_elevation")


def brightened(image: Pixels) -> Pixels:
    """Widen images of zeros and ones, as dSprites stores them, to 0 and 255."""
    return image * np.uint8(255) if image.max(initial=0) <= 1 else image


Group = str
GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")


@dataclass(frozen=True)
class VtabTask:
    """One task.

    Attributes:
        name: of the command line and of its folder
        title: as the ViT paper's Table 9 heads its column
        group: natural, specialized or structured
        classes: number of classes
        train: 800 images to learn from
        validation: 200 images to choose by
        test: the images that count
        label: makes the classes of the rows of a table from what it stores
        folders: other names that its folder may have
        flip: whether mirroring keeps the label (BiT paper, appendix F)
        crop: whether a random crop keeps the label (the same)
    """

    name: str
    title: str
    group: Group
    classes: int
    train: str
    validation: str
    test: str = "test"
    label: Callable[[Any], NDArray[np.int64]] = stored
    folders: tuple[str, ...] = ()
    flip: bool = True
    crop: bool = True


FIRST = "train[:800]"
VALIDATION = "validation[:200]"
DSPRITES = ("train[589824:590024]", "train[663552:]")
NORB = ("test[:200]", "test[50%:]")

TASKS: tuple[VtabTask, ...] = (
    VtabTask("caltech101", "Caltech101", "natural", 102, FIRST, "train[2754:2954]"),
    VtabTask(
        "cifar100", "CIFAR-100", "natural", 100, FIRST, "train[45000:45200]", folders=("cifar",)
    ),
    VtabTask("dtd", "DTD", "natural", 47, FIRST, VALIDATION),
    VtabTask("oxford_flowers102", "Flowers102", "natural", 102, FIRST, VALIDATION),
    VtabTask("oxford_iiit_pet", "Pets", "natural", 37, FIRST, "train[2944:3144]"),
    VtabTask("sun397", "Sun397", "natural", 397, FIRST, VALIDATION),
    VtabTask(
        "svhn", "SVHN", "natural", 10, FIRST, "train[65931:66131]", folders=("svhn_cropped",)
    ),
    VtabTask("patch_camelyon", "Camelyon", "specialized", 2, FIRST, VALIDATION),
    VtabTask(
        "eurosat", "EuroSAT", "specialized", 10, FIRST, "train[16200:16400]", "train[21600:]"
    ),
    VtabTask(
        "resisc45", "Resisc45", "specialized", 45, FIRST, "train[18900:19100]", "train[25200:]"
    ),
    VtabTask("diabetic_retinopathy", "Retinopathy", "specialized", 5, FIRST, VALIDATION),
    VtabTask(
        "clevr_count", "Clevr-Count", "structured", 8, FIRST, "train[63000:63200]", "validation",
        clevr_count, ("clevr_count_all", "clevr"), crop=False,
    ),
    VtabTask(
        "clevr_dist", "Clevr-Dist", "structured", 6, FIRST, "train[63000:63200]", "validation",
        clevr_distance, ("clevr_closest_object_distance", "clevr"), crop=False,
    ),
    VtabTask("dmlab", "DMLab", "structured", 6, FIRST, VALIDATION, crop=False),
    VtabTask(
        "dsprites_loc", "dSpr-Loc", "structured", 16, FIRST, *DSPRITES,
        dsprites_position, ("dsprites_label_x_position", "dsprites"),
        flip=False, crop=False,
    ),
    VtabTask(
        "dsprites_ori", "dSpr-Ori", "structured", 16, FIRST, *DSPRITES,
        dsprites_orientation, ("dsprites_label_orientation", "dsprites"), flip=False,
    ),
    VtabTask(
        "kitti", "KITTI-Dist", "structured", 4, FIRST, VALIDATION, "test",
        kitti_distance, ("kitti_closest_vehicle_distance",), crop=False,
    ),
    VtabTask(
        "smallnorb_azi", "sNORB-Azim", "structured", 18, FIRST, *NORB,
        norb_azimuth, ("smallnorb_label_azimuth", "smallnorb"), flip=False,
    ),
    VtabTask(
        "smallnorb_ele", "sNORB-Elev", "structured", 9, FIRST, *NORB,
        norb_elevation, ("smallnorb_label_elevation", "smallnorb"),
    ),
)  # fmt: skip
"""In the order of the ViT paper's Table 9."""

BY_NAME = {task.name: task for task in TASKS}
