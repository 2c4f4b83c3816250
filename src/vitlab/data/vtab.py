"""VTAB-1k: 19 tasks of 1,000 training images each, and where their images lie.

    ROOT/cifar100/train800.txt, val200.txt, test.txt    lists of `path label`, paths relative to
                                                        ROOT/cifar100

`vtab:ROOT/cifar100` is DATA with these 1,000 images to train on and the test images;
`vtab-search:ROOT/cifar100` has the 800 to train on, and the 200 in place of the test images.

Zhai et al., A large-scale study of representation learning with the visual task adaptation
benchmark, 2019; splits and labels as in the authors' code (google-research/task_adaptation).
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitlab.data.altered import Altered
from vitlab.data.decode.pixels import Pixels
from vitlab.data.images import Images, concat
from vitlab.data.labels import SingleLabels
from vitlab.data.sources.image_files import named_files
from vitlab.data.sources.paths import read_text
from vitlab.data.sources.request import Found, Part, Request
from vitlab.errors import DataError
from vitlab.options import nearest

WHOLE, SEARCH = "vtab:", "vtab-search:"
LISTS = {"train800.txt": 800, "val200.txt": 200, "test.txt": 0}  # how many images; 0 for any
LARGEST = 2**26  # bytes of a list


def brightened(image: Pixels) -> Pixels:
    """Widen images of zeros and ones, as dSprites stores them, to 0 and 255."""
    return image * np.uint8(255) if image.max(initial=0) <= 1 else image


GROUPS = ("natural", "specialized", "structured")


@dataclass(frozen=True)
class VtabTask:
    """One task.

    Attributes:
        name: of the command line and of its folder
        title: as the ViT paper's Table 9 heads its column
        group: natural, specialized or structured
        classes: number of classes
        folders: other names that its folder may have
        flip: whether mirroring keeps the label (BiT paper, appendix F)
        crop: whether a random crop keeps the label (the same)
    """

    name: str
    title: str
    group: str
    classes: int
    folders: tuple[str, ...] = ()
    flip: bool = True
    crop: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes; with the task's, so that no other model's classifier is taken over."""
        return tuple(f"{self.name} {number}" for number in range(self.classes))


TASKS: tuple[VtabTask, ...] = (
    VtabTask("caltech101", "Caltech101", "natural", 102),
    VtabTask("cifar100", "CIFAR-100", "natural", 100, ("cifar",)),
    VtabTask("dtd", "DTD", "natural", 47),
    VtabTask("oxford_flowers102", "Flowers102", "natural", 102),
    VtabTask("oxford_iiit_pet", "Pets", "natural", 37),
    VtabTask("sun397", "Sun397", "natural", 397),
    VtabTask("svhn", "SVHN", "natural", 10, ("svhn_cropped",)),
    VtabTask("patch_camelyon", "Camelyon", "specialized", 2),
    VtabTask("eurosat", "EuroSAT", "specialized", 10),
    VtabTask("resisc45", "Resisc45", "specialized", 45),
    VtabTask("diabetic_retinopathy", "Retinopathy", "specialized", 5),
    VtabTask("clevr_count", "Clevr-Count", "structured", 8, ("clevr_count_all",), crop=False),
    VtabTask("clevr_dist", "Clevr-Dist", "structured", 6, ("clevr_closest_object_distance",),
             crop=False),
    VtabTask("dmlab", "DMLab", "structured", 6, crop=False),
    VtabTask("dsprites_loc", "dSpr-Loc", "structured", 16, ("dsprites_label_x_position",),
             flip=False, crop=False),
    VtabTask("dsprites_ori", "dSpr-Ori", "structured", 16, ("dsprites_label_orientation",),
             flip=False),
    VtabTask("kitti", "KITTI-Dist", "structured", 4, ("kitti_closest_vehicle_distance",),
             crop=False),
    VtabTask("smallnorb_azi", "sNORB-Azim", "structured", 18, ("smallnorb_label_azimuth",),
             flip=False),
    VtabTask("smallnorb_ele", "sNORB-Elev", "structured", 9, ("smallnorb_label_elevation",)),
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
    if prefix + colon == SEARCH:
        return Found([Part(train, "train"), Part(validation, "test")])
    return Found([Part(concat((train, validation)), "train"), Part(test, "test")])


def available(root: Path) -> dict[str, Path]:
    """Return the folder of each task, by the task's name; tasks without data are absent.

    Raises:
        DataError: no such folder.
    """
    if not root.is_dir():
        raise DataError(f"no such folder: {root}")
    return {
        task.name: root / name
        for task in TASKS
        for name in (*reversed(task.folders), task.name)
        if (root / name).is_dir()
    }


def open_task(root: Path, task: VtabTask) -> list[Images]:
    """Return the 800 training, the 200 validation and the test images of a task.

    Raises:
        DataError: no data for it, or parts of other sizes than VTAB-1k's.
    """
    folder = available(root).get(task.name)
    if folder is None:
        raise DataError(f"{root} has no folder {task.name}")
    parts = [_list(folder / name, task) for name in LISTS]
    for part, (name, size) in zip(parts, LISTS.items(), strict=True):
        if size and len(part) != size:
            raise DataError(f"{folder / name} has {len(part):,} images; VTAB-1k has {size}")
    if task.name.startswith("dsprites"):
        return [replace(part, store=Altered(part.store, brightened)) for part in parts]
    return parts


def _list(file: Path, task: VtabTask) -> Images:
    """Return the images that a list of `path label` names."""
    lines = read_text(file, LARGEST).splitlines()
    paths = []
    labels = []
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
        paths.append(str(file.parent / path))
        labels.append(int(found[2]))
    images = named_files(paths, str(file))
    return images.with_target(SingleLabels(np.array(labels, np.int64)), task.names)
