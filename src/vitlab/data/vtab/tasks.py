"""The 19 tasks of VTAB-1k: their groups, classes, labels, and where their images lie.

Zhai et al., A large-scale study of representation learning with the visual task adaptation
benchmark, 2019; splits and labels as in the authors' code (google-research/task_adaptation). The
parts are those of TensorFlow Datasets, in its order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.vtab import adapters

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
    label: Callable[[Any], NDArray[np.int64]] = adapters.stored
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
        adapters.clevr_count, ("clevr_count_all", "clevr"), crop=False,
    ),
    VtabTask(
        "clevr_dist", "Clevr-Dist", "structured", 6, FIRST, "train[63000:63200]", "validation",
        adapters.clevr_distance, ("clevr_closest_object_distance", "clevr"), crop=False,
    ),
    VtabTask("dmlab", "DMLab", "structured", 6, FIRST, VALIDATION, crop=False),
    VtabTask(
        "dsprites_loc", "dSpr-Loc", "structured", 16, FIRST, *DSPRITES,
        adapters.dsprites_position, ("dsprites_label_x_position", "dsprites"),
        flip=False, crop=False,
    ),
    VtabTask(
        "dsprites_ori", "dSpr-Ori", "structured", 16, FIRST, *DSPRITES,
        adapters.dsprites_orientation, ("dsprites_label_orientation", "dsprites"), flip=False,
    ),
    VtabTask(
        "kitti", "KITTI-Dist", "structured", 4, FIRST, VALIDATION, "test",
        adapters.kitti_distance, ("kitti_closest_vehicle_distance",), crop=False,
    ),
    VtabTask(
        "smallnorb_azi", "sNORB-Azim", "structured", 18, FIRST, *NORB,
        adapters.norb_azimuth, ("smallnorb_label_azimuth", "smallnorb"), flip=False,
    ),
    VtabTask(
        "smallnorb_ele", "sNORB-Elev", "structured", 9, FIRST, *NORB,
        adapters.norb_elevation, ("smallnorb_label_elevation", "smallnorb"),
    ),
)  # fmt: skip
"""In the order of the ViT paper's Table 9."""

BY_NAME = {task.name: task for task in TASKS}
