"""The predictions of a run's model for its test images, kept in the run's folder."""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vitlab.data.contents import Contents
from vitlab.data.hashes import digest
from vitlab.data.holdout import apply_moves, take_partition, with_validation
from vitlab.data.images import Images
from vitlab.data.open_splits import open_to_learn, with_identities
from vitlab.data.sources.urls import is_url
from vitlab.data.splits import Splits
from vitlab.effort import FULL
from vitlab.errors import DataError, DiskError
from vitlab.evaluation.answers import Answers, Integers, MultiAnswers, SingleAnswers, answers_of
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Probabilities, Progress, predict, silent
from vitlab.files import staged_file
from vitlab.models.model import Model
from vitlab.progress import say
from vitlab.recipes.recipe import Recipe
from vitlab.recorded_paths import read_agreeing
from vitlab.runs.kept_arrays import read_arrays, write_arrays
from vitlab.runs.run_folder import RunFolder
from vitlab.runs.same_data import is_same_data
from vitlab.values import fits
from vitlab.weights.load import load
from vitlab.weights.sharded import CONFIG

LARGEST = 64_000_000  # bytes of predictions that a run keeps
# Of each array: its axes, n images and c classes, and NumPy's letter of its type.
KEPT = dict.fromkeys(("indices", "keys", "truth", "guess", "rank"), ("n", "i"))
KEPT |= dict.fromkeys(("confidence", "own", "square"), ("n", "f"))
KEPT |= {"table": ("nc", "u"), "probabilities": ("nc", "f"), "thresholds": ("c", "f")}


@dataclass(frozen=True, eq=False)
class Examined:
    """The answers of a run's model to its test images.

    Attributes:
        classes: their names, in the order that the answers number them
        answers: to each image that could be decoded
        indices: the numbers of these images among the test images, int64 (n,)
        keys: what each image is recognized by in other runs, int64 (n,)
    """

    classes: tuple[str, ...]
    answers: Answers
    indices: Integers
    keys: Integers

    @classmethod
    def of(
        cls, folder: RunFolder, model: Model, source: Images, predictions: Probabilities
    ) -> Self:
        """Return the answers in a model's predictions for a source.

        Args:
            folder: of its run; images on another machine are recognized by their names
            model: that made them
            source: the images
            predictions: of these
        """
        by_name = is_url(str(folder.tables.get("data", {}).get("data", "")))
        above = np.array(model.thresholds)
        answers = answers_of(predictions.probabilities, predictions.labels, above)
        keys = image_keys(source, predictions.indices, by_name)
        return cls(source.classes, answers, predictions.indices, keys)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is kept: the numbers by name."""
        return {"indices": self.indices, "keys": self.keys} | vars(self.answers)

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], classes: tuple[str, ...]) -> Self:
        """Return what `arrays` was made of.

        Raises:
            KeyError: arrays are missing.
        """
        kind = SingleAnswers if "guess" in arrays else MultiAnswers
        answers = kind(**{name: arrays[name] for name in kind.__annotations__})
        return cls(classes, answers, arrays["indices"], arrays["keys"])


def image_keys(source: Images, indices: Integers, by_name: bool = False) -> Integers:
    """Return a number for each image that is the same wherever the image lies: int64 (n,).

    It is a hash of the stored bytes, of an image that occurs several times also of how often it
    has occurred before. An image that can no longer be read goes by its name.

    Args:
        source: the images
        indices: which of them
        by_name: hash the names alone, of images on another machine
    """
    before: Counter[bytes] = Counter()
    keys = []
    for index in indices.tolist():
        mark = _mark(source, index, by_name)
        keys.append(digest(mark + b"%d" % before[mark], 8))
        before[mark] += 1
    return np.frombuffer(b"".join(keys), np.int64).copy()


def _mark(source: Images, index: int, by_name: bool) -> bytes:
    if not by_name:
        try:
            return digest(source.image(index).content(), 8)
        except DataError:
            pass
    return source.name(index).encode("utf-8", "surrogateescape")


def keep(folder: RunFolder, model: Model, source: Images, predictions: Probabilities) -> Examined:
    """Keep the predictions of a run's model for its test images in the run's folder.

    Raises:
        DiskError: the folder cannot be written to.
    """
    found = Examined.of(folder, model, source, predictions)
    if sum(each.nbytes for each in found.arrays.values()) <= LARGEST:
        about = _marks(folder) | {"classes": list(found.classes)}
        with staged_file(folder.predictions) as draft:
            write_arrays(draft, found.arrays, about)
    return found


def kept(folder: RunFolder) -> Examined | None:
    """Return what is kept of the run's model as it is now and of the run's data, if anything is."""
    found = read_arrays(folder.predictions, dict)
    if found is None:
        return None
    arrays, about = found
    marks = _marks(folder)
    same = about.get("data") == marks["data"] and marks["model"] in ("", about.get("model"))
    classes = about.get("classes")
    if not same or not fits(classes, tuple[str, ...]):
        return None
    try:
        examined = Examined.from_arrays(arrays, tuple(classes))
    except KeyError:
        return None
    return examined if _go_together(examined) else None


def _go_together(examined: Examined) -> bool:
    """Whether each array has its shape and kind of numbers, and all classes exist."""
    sizes = {"n": len(examined.indices), "c": len(examined.classes)}
    for name, each in examined.arrays.items():
        axes, kind = KEPT[name]
        if each.shape != tuple(sizes[axis] for axis in axes) or each.dtype.kind != kind:
            return False
        if name in ("truth", "guess", "rank") and not ((each >= 0) & (each < sizes["c"])).all():
            return False
        if kind == "f" and not np.isfinite(each).all():
            return False
    return True


def examine(
    folder: RunFolder,
    *,
    device: str = "auto",
    workers: int | None = None,
    progress: Progress = silent,
) -> Examined:
    """Return the answers of a run's model to its test images: those that are kept, or new ones.

    New ones are kept.

    Args:
        folder: of a finished run
        device: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose
        progress: called after every batch with the number of images processed, and of all

    Raises:
        DataError: the run's data is no longer there, or has changed since.
        WeightsError: its model is missing or damaged.
    """
    if (before := kept(folder)) is not None:
        return before
    source = reopened(folder).test
    model = load(folder.path)
    done = predict(
        model, source, Compute(device, engine="plain", workers=workers), progress=progress
    )
    try:
        return keep(folder, model, source, done)
    except DiskError as error:
        say(f"{error}; its predictions will be computed again next time")
        return Examined.of(folder, model, source, done)


def reopened(folder: RunFolder) -> Splits:
    """Return the splits of a run's data: its test images, and all it could have learned from.

    Raises:
        DataError: the data is no longer there, or has changed since.
        RunError: `run.toml` is damaged.
    """
    recipe = folder.recipe
    found = folder.duplicates or {}

    def open_splits(here: Recipe) -> Splits:
        splits = take_partition(
            with_identities(open_to_learn(here.data.data, options=here.data)), here.data
        )
        splits = replace(splits, test=splits.test.without(found.get("seen_test", ())))
        if here.chooses(len(splits.train)):
            splits = with_validation(splits)
        return apply_moves(splits, found.get("moved", {}))

    splits, agrees = read_agreeing(
        folder.paths.ways(folder.recipe_here, "data"),
        open_splits,
        lambda each: is_same_data(folder, Contents(each.whole or each.train, FULL.read_first)),
    )
    if not agrees:
        raise DataError(f"{recipe.data.data} has changed since the run was trained")
    return splits


def _marks(folder: RunFolder) -> dict[str, str]:
    """Return what tells data and model from others; config.json has the checksums of all weights.

    Calibrating the model, or choosing thresholds, changes that file too.
    """
    config = folder.model / CONFIG
    model = hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else ""
    return {"data": folder.data_checksum, "model": model}
