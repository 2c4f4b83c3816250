"""ImageNet protocols: figures on ImageNet, ReaL, V2, ObjectNet, A, R and Sketch by their rules.

A protocol says which images count, which answers are right, and which outputs compete.

imagenet   the 50,000 validation images; right: the class
real       the same images with the labels of Beyer et al., Are we done with ImageNet?, 2020;
           right: any of an image's labels; images without one are left out
v2         Recht et al., Do ImageNet classifiers generalize to ImageNet?, 2019: 10,000 new
           images; the folders 0 … 999 are numbers of classes
objectnet  Barbu et al., ObjectNet, 2019: right: any ImageNet class that corresponds to the
           folder; images of the 200 folders without one are left out; the red border is cut off
a, r       Hendrycks et al., Natural adversarial examples, 2021, and The many faces of
           robustness, 2021: 200 classes each; only their outputs compete
sketch     Wang et al., Learning robust global representations, 2019: 50,889 drawings

`imagenet.txt` lists the WordNet ids of ImageNet's 1,000 classes in the order that every model has
them, with marks for those that ImageNet-A and ImageNet-R use; `objectnet.txt` the 113 folders of
ObjectNet that correspond to classes, with their ids.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitlab import device as devices
from vitlab.data.altered import Altered
from vitlab.data.decode.pixels import Pixels
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels, classes_of_images
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Columns
from vitlab.data.sources.folders import names_below
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.paths import Names
from vitlab.data.sources.request import Given
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.evaluation.answers import Bools, Floats, Integers
from vitlab.evaluation.choosing import unlearned
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Progress, check_classifier, predict, silent
from vitlab.evaluation.intervals import with_intervals
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.precision import fixed

Protocol = Literal["imagenet", "real", "v2", "objectnet", "a", "r", "sketch"]
Outputs = Literal["auto", "all", "shared"]
CLASSES = 1000
VALIDATION = ("val", "validation")
REAL = "google-research/reassessed-imagenet"
ROWS = 4096  # images graded at once
BORDER = 2  # pixels of red around every image of ObjectNet
PLAIN = Compute()
PER_CLASS = ("auroc", "balanced_", "kappa", "macro_", "mcc")  # what figures of classes begin with


RULES = {
    "imagenet": ("ImageNet", 50_000, ""),
    "v2": ("ImageNet-V2", 10_000, ""),
    "a": ("ImageNet-A", 7_500, "a"),
    "r": ("ImageNet-R", 30_000, "r"),
    "sketch": ("ImageNet-Sketch", 50_889, ""),
}
"""By protocol: title, number of images, and the mark of the classes, which alone compete."""


@dataclass(frozen=True)
class Exam:
    """Images, and which of ImageNet's classes are right for each.

    Attributes:
        source: the images; each label is a row of `accepted`
        accepted: bool (rows, 1000), the right classes
        notes: remarks for the user
        left_out: images that do not count
        shared: numbers of the classes that occur in the data set; None for all
        alone: whether only these compete by its authors' convention
    """

    source: Images
    accepted: Bools
    notes: list[str]
    left_out: int = 0
    shared: Integers | None = None
    alone: bool = False

    def competing(self, outputs: Outputs) -> Integers:
        """Return the numbers of the classes whose outputs compete."""
        few = outputs == "shared" or (outputs == "auto" and self.alone)
        return self.shared if few and self.shared is not None else np.arange(CLASSES)


@cache
def imagenet(mark: str = "") -> tuple[str, ...]:
    """Return the WordNet ids of ImageNet's classes in order, or of those with a mark (a, r)."""
    lines = _lines("imagenet.txt")
    return tuple(wnid for wnid, *marks in lines if not mark or mark in marks)


def objectnet() -> dict[str, tuple[str, ...]]:
    """Return the WordNet ids of each ObjectNet folder that shares classes with ImageNet."""
    return {folder: tuple(wnids) for folder, *wnids in _lines("objectnet.txt")}


def _lines(name: str) -> list[list[str]]:
    text = (files("vitlab.evaluation") / name).read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines()]


def numbers_of(wnids: Sequence[str]) -> Integers:
    """Return the numbers of classes by their WordNet ids."""
    return np.array([*map(imagenet().index, wnids)], np.int64)


def examine(
    model: Model,
    data: Given,
    protocol: Protocol,
    compute: Compute = PLAIN,
    flips: bool = False,
    *,
    real_labels: str = "",
    outputs: Outputs = "auto",
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure a model of ImageNet's classes by a protocol: the JSON of `vitlab evaluate`.

    Images are prepared as for every evaluation of this model. With several right classes per
    image, the likeliest of them decides (`nll` too).

    Args:
        model: a classifier whose outputs are named by WordNet ids, or one of 1,000 outputs in
            ImageNet's order
        data: the data set's folder; of `imagenet`, `a`, `r` and `sketch` any labeled data
        protocol: the rules
        compute: where and how
        flips: average over each image and its mirror image
        real_labels: the file `real.json` of ReaL
        outputs: which outputs compete: `all` 1,000; `shared`, those of classes that occur in the
            data set, and that the model has; `auto`, as the data set's authors have it: those of
            the data set for A and R, else `all`
        progress: called after every batch with the number of images processed, and of all

    Returns:
        The figures of `vitlab.evaluate` with their intervals, and protocol, left_out (images that
        do not count) and competing (outputs). Figures of classes are there only where each image
        has one right class.

    Raises:
        DataError: the data set is not as its authors publish it.
        OptionError: the model's outputs are not ImageNet's.
    """
    devices.restart_peak(compute.where)
    compute = replace(compute, precision=fixed(compute.precision))
    check_classifier(model)
    if not isinstance(data, str | Path):
        raise OptionError("protocol needs the data set's folder, not images in memory")
    if protocol == "real":
        exam = reassessed(str(data), real_labels)
    elif real_labels:
        raise OptionError(f"real_labels applies only with protocol=real, not {protocol}")
    else:
        exam = objects(str(data)) if protocol == "objectnet" else by_class(str(data), protocol)
    classes = exam.competing(outputs)
    config = model.config
    if outputs == "shared" and any(map(is_wnid, known := {*config.labels})):
        classes = classes[[imagenet()[number] in known for number in classes]]
        rows = classes_of_images(exam.source.target)
        kept = np.flatnonzero(exam.accepted[rows][:, classes].any(1))
        if not len(kept):
            raise DataError("no image is of a class that the model has")
        left = exam.left_out + len(rows) - len(kept)
        exam = replace(exam, source=exam.source.take(kept), left_out=left)
    wanted = [imagenet()[number] for number in classes]
    columns, note = outputs_of(config.labels, config.classes, wanted, config.name)
    asked = unlearned(exam.source, model.seen, leave_out=False)
    chosen = SelectedOutputs(model, columns)
    done = predict(chosen, exam.source, compute, flips=flips, progress=progress)
    rows = classes_of_images(done.labels)
    right = likeliest(done.probabilities, exam.accepted[:, classes], rows)
    found = with_intervals(done.probabilities, SingleLabels(right))
    if exam.accepted.sum(axis=1).max() > 1:
        for name in [each for each in found if each.startswith(PER_CLASS)]:
            del found[name]
            found["intervals"].pop(name, None)
    return found | {
        **done.about(model),
        "left_out": exam.left_out,
        "competing": len(classes),
        "notes": [*filter(None, [note]), *asked.notes, *exam.notes, *done.bad.values()],
        "protocol": protocol,
        "peak_memory": devices.peak_memory(compute.where),
    }


def check_alone(**given: object) -> None:
    """Refuse options of `evaluate` that have no effect under a protocol.

    Raises:
        OptionError: the first that is on, or not `auto`.
    """
    if named := [name for name, value in given.items() if value and value != "auto"]:
        raise OptionError(f"{named[0]} applies only without protocol: leave one of them out")


def likeliest(probabilities: Floats, accepted: Bools, rows: Integers) -> Integers:
    """Return the likeliest right class of each image (ties: the lower number), (n,).

    An image is then right among the first k exactly if any of its right classes is.

    Args:
        probabilities: of the classes that compete, (n, classes)
        accepted: which of them are right, (rows, classes)
        rows: of each image, (n,)
    """
    parts = [
        np.where(accepted[rows[own]], probabilities[own], -1.0).argmax(axis=1)
        for first in range(0, len(rows), ROWS)
        for own in [slice(first, first + ROWS)]
    ]
    return np.concatenate(parts)


class SelectedOutputs(Model):
    """A model of which only some outputs compete, in a given order.

    Args:
        model: any classifier; it stays where it is, and is shared
        columns: which outputs
    """

    columns: Tensor

    def __init__(self, model: Model, columns: Integers) -> None:
        nn.Module.__init__(self)
        self.config = replace(model.config, classes=len(columns), labels=())
        self.provenance = model.provenance
        self.source = model.source
        self.model = model
        self.seen = model.seen
        home = next(model.parameters()).device
        self.register_buffer("columns", torch.from_numpy(columns).to(home), persistent=False)

    def features(self, images: Tensor | Packed) -> Tensor:
        """Compute what the classifier sees."""
        return self.model.features(images)

    def scores(self, features: Tensor) -> Tensor:
        """Compute class scores: (B, features) -> (B, chosen outputs)."""
        return self.model.scores(features)[:, self.columns]


def is_wnid(text: str) -> bool:
    """Return whether a text is a WordNet id, as n01440764."""
    return re.fullmatch(r"n\d{8}", text) is not None


def outputs_of(
    labels: Sequence[str], count: int, wanted: Sequence[str], what: str
) -> tuple[Integers, str]:
    """Return which of `count` outputs stand for the wanted classes, and how that was found.

    By the labels where they are WordNet ids, or all the numbers from 0 to 999 (folders have them in
    the order of words); other 1,000 outputs are taken in ImageNet's order.

    Args:
        labels: names of the outputs, or none
        count: number of outputs
        wanted: WordNet ids
        what: whose outputs these are, for a message

    Raises:
        OptionError: outputs are missing, or it is unknown which is which.
    """
    if {*labels} == {*map(str, range(CLASSES))}:
        labels = [imagenet()[int(each)] for each in labels]
    if any(map(is_wnid, labels)):
        place = {label: number for number, label in enumerate(labels)}
        if missing := [wnid for wnid in wanted if wnid not in place]:
            raise OptionError(
                f"{what} lacks {len(missing):,} of the {len(wanted):,} classes that compete, such "
                f"as {missing[0]}: outputs=shared leaves them out"
            )
        return np.array([place[wnid] for wnid in wanted], np.int64), ""
    if count != CLASSES:
        raise OptionError(
            f"{what} has {count:,} classes that are not named by WordNet ids, so it is unknown "
            "which are ImageNet's: name them so, or use 1,000 in ImageNet's order"
        )
    note = f"{what} does not name its classes by WordNet ids: taken in ImageNet's order"
    return numbers_of(wanted), note


# The data sets


def by_class(data: str, protocol: str) -> Exam:
    """Return the exam of a data set whose images have one class each.

    Raises:
        DataError: it has classes that are not of the data set, or is not there.
    """
    title, expected, mark = RULES[protocol]
    source = _labeled(data)
    known = imagenet(mark)
    notes = list[str]()
    if protocol == "v2":
        if wrong := [name for name in source.classes if not re.fullmatch(r"\d{1,3}", name)]:
            raise DataError(
                f"{data}/{wrong[0]} is not named by a class number from 0 to {CLASSES - 1}: name "
                "the folder of one variant of ImageNet-V2"
            )
        numbers = np.array([*map(int, source.classes)], np.int64)
    elif any(map(is_wnid, source.classes)):
        if unknown := sorted(set(source.classes) - set(known)):
            raise DataError(
                f"{data} contains class {unknown[0]!r}, which is not one of the {len(known):,} of "
                f"{title}"
            )
        numbers = numbers_of(source.classes)
    else:
        numbers, note = outputs_of(source.classes, len(source.classes), imagenet(), data)
        notes.append(note)
    rows = numbers[classes_of_images(source.target)]
    if len(present := np.unique(rows)) < len(known) and protocol != "v2":
        notes.append(f"{data} has images of {len(present):,} of the {len(known):,} classes")
    notes += _counted(len(source), expected, title)
    images = source.with_target(SingleLabels(rows), imagenet())
    every = np.eye(CLASSES, dtype=bool)
    return Exam(images, every, notes, shared=numbers_of(known), alone=bool(mark))


def _labeled(data: str) -> Images:
    """Return the labeled images of a folder of class folders, or the test images of other data."""
    root = Path(data).expanduser()
    if root.is_dir() and not list(root.glob("*.parquet")) and not list(root.glob("*.tar")):
        inside = {each.name: each for each in root.iterdir() if each.is_dir()}
        if not any(map(is_wnid, inside)):
            root = next((inside[name] for name in VALIDATION if name in inside), root)
        return _of_folders(root)
    splits = open_to_learn(data)
    return splits.whole or splits.validation or splits.test


def _of_folders(root: Path) -> Images:
    """Return the images of a folder whose folders are classes."""
    return open_images(root, columns=Columns(class_folder="outer")).every()


def objects(data: str) -> Exam:
    """Return the images of ObjectNet whose folder shares classes with ImageNet.

    Raises:
        DataError: there is none.
    """
    known = objectnet()
    root = Path(data).expanduser()
    places = (root / "objectnet-1.0" / "images", root / "images", root)
    files = _of_folders(next((each for each in places if each.is_dir()), root))
    row = {folder: number for number, folder in enumerate(known)}
    rows = np.array([row.get(name, -1) for name in files.classes], np.int64)[
        classes_of_images(files.target)
    ]
    chosen = np.flatnonzero(rows >= 0)
    if not len(chosen):
        raise DataError(
            f"{data} has no folder of ObjectNet's, such as {next(iter(known))}: name the folder "
            "objectnet-1.0 or its images"
        )
    accepted = np.zeros((len(known), CLASSES), bool)
    for number, wnids in enumerate(known.values()):
        accepted[number, numbers_of(wnids)] = True
    images = files.with_target(SingleLabels(rows), imagenet()).take(chosen)
    notes = _counted(len(chosen), 18_574, "ObjectNet")
    left = len(rows) - len(chosen)
    return Exam(
        replace(images, store=Altered(images.store, trimmed)),
        accepted,
        notes,
        left_out=left,
        shared=np.flatnonzero(accepted.any(0)),
    )


def trimmed(image: Pixels) -> Pixels:
    """Cut off ObjectNet's border.

    Raises:
        ImageError: nothing is left.
    """
    rows, columns, _ = image.shape
    if min(rows, columns) <= 2 * BORDER:
        raise ImageError(f"an image of {rows}x{columns} pixels is nothing but border")
    return image[BORDER:-BORDER, BORDER:-BORDER]


def reassessed(data: str, labels: str) -> Exam:
    """Return the validation images that have labels in `real.json`, by the number in their name.

    Raises:
        DataError: no such file, or one that is not a list of lists of class numbers; images whose
            number is not in their name or not in the list.
    """
    if not labels:
        raise DataError(f"ReaL needs its labels: pass --real-labels real.json, a file of {REAL}")
    answers = read_real(Path(labels).expanduser())
    root = Path(data).expanduser()
    if not root.is_dir():
        raise DataError(f"no such folder: {data}")
    paths = [root / name for name in names_below(root)[0]]
    right = [answers[_number(path, len(answers)) - 1] for path in paths]
    places = [place for place, own in enumerate(right) if own]
    if not places:
        raise DataError(f"no image of {root} has a label in {labels}")
    accepted = np.zeros((len(places), CLASSES), bool)
    for row, place in enumerate(places):
        accepted[row, right[place]] = True
    names = Names.of(str(paths[place].relative_to(root)) for place in places)
    target = SingleLabels(np.arange(len(places)))
    source = Images.of(ImageFiles(root, names), target, imagenet())
    notes = _counted(len(places), sum(map(bool, answers)), "ReaL")
    return Exam(source, accepted, notes, left_out=len(paths) - len(places))


def read_real(file: Path) -> list[list[int]]:
    """Return the labels of each validation image, in the order of their numbers.

    Raises:
        DataError: it cannot be read, or is not a list of lists of class numbers.
    """
    try:
        answers = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    if not isinstance(answers, list) or not all(
        isinstance(own, list) and all(type(each) is int and 0 <= each < CLASSES for each in own)
        for own in answers
    ):
        raise DataError(f"{file} is not a list of lists of numbers from 0 to {CLASSES - 1}")
    return answers


def _number(path: Path, most: int) -> int:
    """Return the number of a validation image, from 1, as its name gives it."""
    found = re.search(r"ILSVRC2012_val_(\d{8})", path.name)
    if not found or not 1 <= int(found[1]) <= most:
        raise DataError(
            f"{path} is not one of the {most:,} images that have ReaL labels: images must keep "
            "their names, such as ILSVRC2012_val_00000001.JPEG"
        )
    return int(found[1])


def _counted(images: int, expected: int, title: str) -> list[str]:
    """Return a remark if images are missing, or too many."""
    return [] if images == expected else [f"{images:,} images; {title} has {expected:,}"]
