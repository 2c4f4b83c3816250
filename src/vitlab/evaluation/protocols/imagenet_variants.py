"""The protocols of ImageNet and its relatives, and which output stands for which of its classes.

Which output of a model stands for which of ImageNet's classes.

A class is named by its WordNet id. `imagenet.txt` lists the 1,000 ids in order, with the marks `a`
and `r` on those that ImageNet-A and ImageNet-R use; `objectnet.txt` lists the 113 folders of
ObjectNet that share classes with ImageNet, each with the ids of those classes.

The protocols: which images, which answers are right, which outputs compete.

imagenet   the 50,000 validation images; right: the class
real       the same images with the labels of Beyer et al., Are we done with ImageNet?, 2020;
           right: any of an image's labels; images without one are left out
v2         Recht et al., Do ImageNet classifiers generalize to ImageNet?, 2019: 10,000 new
           images; the folders 0 … 999 are numbers of classes
objectnet  Barbu et al., ObjectNet, 2019: right: any ImageNet class that corresponds to the
           folder; images of the 200 folders that share no class are left out; the red border
           of 2 pixels is cut off
a, r       Hendrycks et al., Natural adversarial examples, 2021, and The many faces of
           robustness, 2021: 200 classes each; only their outputs compete
sketch     Wang et al., Learning robust global representations, 2019: 50,889 drawings
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.data.decode.pixels import Pixels
from vitlab.data.labels import SingleLabels
from vitlab.data.learning import open_to_learn
from vitlab.data.sources.folders import Files, class_folders, image_files
from vitlab.data.sources.paths import Names
from vitlab.data.sources.source import Altered, Relabeled, Source, Subset
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.models.model import Model
from vitlab.models.packed import Packed

CLASSES = 1000


@cache
def _lines(name: str) -> tuple[tuple[str, ...], ...]:
    text = (files("vitlab.evaluation.protocols") / name).read_text(encoding="utf-8")
    return tuple(tuple(line.split()) for line in text.splitlines())


def imagenet(mark: str = "") -> tuple[str, ...]:
    """Return the WordNet ids of ImageNet's classes in order, or of those with a mark (a, r)."""
    return tuple(wnid for wnid, *marks in _lines("imagenet.txt") if not mark or mark in marks)


def objectnet() -> dict[str, tuple[str, ...]]:
    """Return the WordNet ids of each ObjectNet folder that shares classes with ImageNet."""
    return {folder: tuple(wnids) for folder, *wnids in _lines("objectnet.txt")}


def is_wnid(text: str) -> bool:
    """Return whether a text is a WordNet id, as n01440764."""
    return re.fullmatch(r"n\d{8}", text) is not None


def outputs_of(
    labels: Sequence[str], count: int, wanted: Sequence[str], what: str
) -> tuple[NDArray[np.int64], str]:
    """Return which of `count` outputs stand for the wanted classes, and how that was found.

    By the labels where they are WordNet ids; 1,000 outputs without such labels are taken in
    ImageNet's order.

    Args:
        labels: names of the outputs, or none
        count: number of outputs
        wanted: WordNet ids
        what: whose outputs these are, for a message

    Raises:
        OptionError: outputs are missing, or it is unknown which is which.
    """
    if any(map(is_wnid, labels)):
        place = {label: number for number, label in enumerate(labels)}
        if missing := [wnid for wnid in wanted if wnid not in place]:
            raise OptionError(
                f"{what} lacks {len(missing):,} of the {len(wanted):,} classes that compete, such "
                f"as {missing[0]}: all of them are needed"
            )
        return np.array([place[wnid] for wnid in wanted], np.int64), ""
    if count != CLASSES:
        raise OptionError(
            f"{what} has {count:,} classes that are not named by WordNet ids, so it is unknown "
            "which are ImageNet's: name them so, or use 1,000 in ImageNet's order"
        )
    order = {wnid: number for number, wnid in enumerate(imagenet())}
    note = f"{what} does not name its classes by WordNet ids: taken in ImageNet's order"
    return np.array([order[wnid] for wnid in wanted], np.int64), note


class SelectedOutputs(Model):
    """A model of which only some outputs compete, in a given order.

    Args:
        model: any classifier; it stays where it is, and is shared
        columns: which outputs
    """

    columns: Tensor

    def __init__(self, model: Model, columns: NDArray[np.int64]) -> None:
        nn.Module.__init__(self)
        self.config = replace(model.config, classes=len(columns), labels=())
        self.provenance, self.source, self.model = model.provenance, model.source, model
        self.seen = model.seen
        home = next(model.parameters()).device
        self.register_buffer("columns", torch.from_numpy(columns).to(home), persistent=False)

    def features(self, images: Tensor | Packed) -> Tensor:
        """Compute what the classifier sees."""
        return self.model.features(images)

    def scores(self, features: Tensor) -> Tensor:
        """Compute class scores: (B, features) -> (B, chosen outputs)."""
        return self.model.scores(features)[:, self.columns]


BORDER = 2  # pixels of red around every image of ObjectNet
VALIDATION = ("val", "validation")
VARIANTS = ("matched-frequency", "threshold-0.7", "top-images")  # of ImageNet-V2
REAL = "google-research/reassessed-imagenet"


@dataclass(frozen=True)
class Exam:
    """Images, and which of ImageNet's classes are right for each.

    Attributes:
        title: of the data set
        source: the images; each label is a row of `accepted`
        accepted: bool (rows, 1000), the right classes
        shared: numbers of the classes that occur in the data set
        compete: whether only those compete by the authors' convention
        left_out: images that do not count
        notes: remarks for the user
    """

    title: str
    source: Source
    accepted: NDArray[np.bool_]
    shared: NDArray[np.int64]
    compete: bool = False
    left_out: int = 0
    notes: tuple[str, ...] = ()


def second(data: str) -> dict[str, Exam]:
    """Return one variant of ImageNet-V2, or each that the folder contains, by name."""
    root = _folder(data)
    if any(each.name.isdecimal() for each in _folders(root)):
        return {"": _numbered(root)}
    found = {
        name: each
        for name in VARIANTS
        for each in _folders(root)
        if name.replace("-", "") in each.name.replace("-", "")
    }
    if not found:
        raise DataError(
            f"{root} contains neither the folders 0 … 999 of ImageNet-V2 nor a folder of one of "
            f"its variants ({', '.join(VARIANTS)})"
        )
    return {name: _numbered(each) for name, each in found.items()}


def objects(data: str) -> dict[str, Exam]:
    """Return the images of ObjectNet whose folder shares classes with ImageNet."""
    title, known = "ObjectNet", objectnet()
    root = _folder(data)
    root = next((each for name in ("images", "objectnet-1.0/images")
                 if (each := root / name).is_dir()), root)  # fmt: skip
    files, _ = class_folders(root)
    row = {folder: number for number, folder in enumerate(known)}
    rows = np.array([row.get(name, -1) for name in files.classes], np.int64)[files.labels.values]
    if not (rows >= 0).any():
        raise DataError(
            f"{root} has no folder of ObjectNet's, such as {next(iter(known))}: name the folder "
            "objectnet-1.0 or its images"
        )
    chosen = Subset(_relabeled(files, rows), np.flatnonzero(rows >= 0))
    number = {wnid: place for place, wnid in enumerate(imagenet())}
    accepted = np.zeros((len(known), len(number)), bool)
    for place, wnids in enumerate(known.values()):
        accepted[place, [number[wnid] for wnid in wnids]] = True
    left = int((rows < 0).sum())
    notes = _counted(len(chosen), 18_574, title)
    shared = np.flatnonzero(accepted.any(0))
    exam = Exam(title, Altered(chosen, trimmed), accepted, shared, left_out=left, notes=notes)
    return {"": exam}


def reassessed(data: str, labels: str) -> dict[str, Exam]:
    """Return the validation images that have labels in `real.json`, by the number in their name.

    Raises:
        DataError: no such file, or one that is not a list of lists of class numbers; images whose
            number is not in their name or not in the list.
    """
    if not labels:
        raise DataError(f"ReaL needs its labels: pass --real-labels real.json, a file of {REAL}")
    answers = read_real(Path(labels).expanduser())
    root = _folder(data)
    paths = image_files(root)
    numbers = [_number(path, len(answers)) for path in paths]
    places = [place for place, number in enumerate(numbers) if answers[number - 1]]
    if not places:
        raise DataError(f"no image of {root} has a label in {labels}")
    accepted = np.zeros((len(places), len(imagenet())), bool)
    for row, place in enumerate(places):
        accepted[row, answers[numbers[place] - 1]] = True
    names = Names.of(str(paths[place].relative_to(root)) for place in places)
    source = Files(root, names, SingleLabels(np.arange(len(places))), imagenet())
    left = len(paths) - len(places)
    total = sum(map(bool, answers))
    notes = _counted(len(places), total, "ReaL")
    every = np.arange(len(imagenet()))
    return {"": Exam("ReaL", source, accepted, every, left_out=left, notes=notes)}


def read_real(file: Path) -> list[list[int]]:
    """Return the labels of each validation image, in the order of their numbers.

    Raises:
        DataError: it cannot be read, or is not a list of lists of class numbers.
    """
    try:
        answers = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    known = range(len(imagenet()))
    if not isinstance(answers, list) or not all(
        isinstance(own, list) and all(type(each) is int and each in known for each in own)
        for own in answers
    ):
        raise DataError(f"{file} is not a list of lists of numbers from 0 to {known[-1]}")
    return answers


def trimmed(image: Pixels) -> Pixels:
    """Cut off ObjectNet's border.

    Raises:
        ImageError: nothing is left.
    """
    rows, columns, _ = image.shape
    if min(rows, columns) <= 2 * BORDER:
        raise ImageError(f"an image of {rows}x{columns} pixels is nothing but border")
    return image[BORDER:-BORDER, BORDER:-BORDER]


def _number(path: Path, most: int) -> int:
    """Return the number of a validation image, from 1, as its name gives it."""
    found = re.search(r"ILSVRC2012_val_(\d{8})", path.name)
    if not found or not 1 <= int(found[1]) <= most:
        raise DataError(
            f"{path} is not one of the {most:,} images that have ReaL labels: images must keep "
            "their names, such as ILSVRC2012_val_00000001.JPEG"
        )
    return int(found[1])


def _by_class(
    data: str, title: str, expected: int, mark: str = "", compete: bool = False
) -> dict[str, Exam]:
    """Return the exam of a data set whose classes, those with a mark, are named by WordNet ids."""
    source, known = _labeled(data), imagenet(mark)
    place = {wnid: number for number, wnid in enumerate(imagenet())}
    notes: list[str] = []
    if any(map(is_wnid, source.classes)):
        if unknown := sorted(set(source.classes) - set(known)):
            raise DataError(
                f"{data} contains class {unknown[0]!r}, which is not one of the {len(known):,} of "
                f"{title}"
            )
        numbers = np.array([place[name] for name in source.classes], np.int64)
    else:
        numbers, note = outputs_of(source.classes, len(source.classes), imagenet(), data)
        notes.append(note)
    rows = numbers[source.labels.values]
    if len(present := np.unique(rows)) < len(known):
        notes.append(f"{data} has images of {len(present):,} of the {len(known):,} classes")
    notes += _counted(len(source), expected, title)
    shared = np.array([place[wnid] for wnid in known], np.int64)
    accepted = np.eye(len(place), dtype=bool)
    images = _relabeled(source, rows)
    return {"": Exam(title, images, accepted, shared, compete, notes=tuple(notes))}


def _labeled(data: str) -> Source:
    """Return the labeled images of a folder of class folders, or the test images of other data."""
    root = Path(data).expanduser()
    if root.is_dir() and not list(root.glob("*.parquet")) and not list(root.glob("*.tar")):
        inside = {each.name: each for each in _folders(root)}
        if not any(map(is_wnid, inside)):
            root = next((inside[name] for name in VALIDATION if name in inside), root)
        return class_folders(root)[0]
    splits = open_to_learn(data)
    return splits.whole or splits.validation or splits.test


def _numbered(root: Path) -> Exam:
    """Return the exam of a folder whose sub-folders are named by class numbers."""
    files, _ = class_folders(root)
    known = range(len(imagenet()))
    wrong = [name for name in files.classes if not name.isdecimal() or int(name) not in known]
    if wrong:
        raise DataError(f"{root / wrong[0]} is not named by a class number from 0 to {known[-1]}")
    rows = np.array([int(name) for name in files.classes], np.int64)[files.labels.values]
    notes = _counted(len(files), 10_000, "ImageNet-V2")
    every = np.arange(len(known))
    return Exam("ImageNet-V2", _relabeled(files, rows), np.eye(len(known), dtype=bool), every,
                notes=notes)  # fmt: skip


def _relabeled(source: Source, rows: NDArray[np.int64]) -> Source:
    """Return the images of a source with other labels."""
    return Relabeled(source, SingleLabels(rows), imagenet())


def _counted(images: int, expected: int, title: str) -> tuple[str, ...]:
    """Return a remark if images are missing, or too many."""
    if images == expected:
        return ()
    return (f"{images:,} images; {title} has {expected:,}",)


def _folder(data: str) -> Path:
    root = Path(data).expanduser()
    if not root.is_dir():
        raise DataError(f"no such folder: {data}")
    return root


def _folders(root: Path) -> list[Path]:
    return sorted(each for each in root.iterdir() if each.is_dir() and each.name[0] != ".")


EXAMS: dict[str, Callable[[str], dict[str, Exam]]] = {
    "imagenet": partial(_by_class, title="ImageNet", expected=50_000),
    "v2": second,
    "objectnet": objects,
    "a": partial(_by_class, title="ImageNet-A", expected=7_500, mark="a", compete=True),
    "r": partial(_by_class, title="ImageNet-R", expected=30_000, mark="r", compete=True),
    "sketch": partial(_by_class, title="ImageNet-Sketch", expected=50_889),
}
"""By the name of the protocol; `reassessed` takes its labels besides."""
