"""Cost of fewer bits: an exported file against the same file in fp32, on labeled images."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.data.labels import Labels, labels_of
from vitlab.data.loading.crops import fitted_image
from vitlab.data.sources.request import Given, title_of
from vitlab.errors import DataError, ImageError, OptionError, WeightsError
from vitlab.evaluation.choosing import Chosen, choose
from vitlab.evaluation.infer import check_classifier, probabilities
from vitlab.evaluation.metrics import figures, main_of
from vitlab.graphs.agreement import Run, opened, runs
from vitlab.graphs.check import watching
from vitlab.graphs.targets import IMAGES
from vitlab.models.model import Model
from vitlab.units import percent

CALIBRATING = 128  # images, at most, that scales are taken from
LEAST = 50  # images, of two classes, that scales are taken from, and that a cost is stated of
JUDGED = 16  # images whose features are compared
FAR = 0.7  # of the features' spread: those of scrambled weights are above 1
CHANGED = 0.02  # a larger share of images whose prediction changes is refused


@dataclass(frozen=True)
class DrawnSample:
    """Images to measure on, drawn at random once.

    Attributes:
        asked: the images that there are
        numbers: of those that are measured on
        title: of the data
        others: images apart from them, of the training split or else of the same, and their numbers
        bare: whether files take normalized images, not those that were decoded
        batch: images that files take at once
    """

    asked: Chosen
    numbers: list[int]
    title: str
    others: tuple[Images, list[int]]
    bare: bool
    batch: int


@dataclass
class TimedFile:
    """A file, what it gave, and how long that took."""

    run: Run
    rows: list[NDArray[Any]] = field(default_factory=list)
    seconds: float = 0.0

    def take(self, images: NDArray[Any]) -> None:
        """Run a batch of one image; the first one twice, since a file is slower at first."""
        if not self.rows:
            self.run(images)
        start = time.perf_counter()
        found = self.run(images)
        self.seconds += time.perf_counter() - start
        self.rows.append(next(iter(found.values()))[:1])


def draw(
    model: Model,
    data: Given,
    images: int = IMAGES,
    *,
    bare: bool,
    batch: int = 1,
    scales: bool = False,
) -> DrawnSample:
    """Draw at most so many of the data's test split, and others, perhaps to take scales from.

    Raises:
        DataError: no such data.
        OptionError: a model without a classifier, or bare images of any aspect ratio.
    """
    check_classifier(model)
    if bare and model.config.fit == "native":
        raise OptionError("what bits cost cannot be measured with fit=native: leave --data out")
    asked = choose(model, data, "auto")
    for note in asked.notes:
        logging.getLogger("vitlab").warning(note)
    order = np.random.default_rng(0).permutation(len(asked.source)).tolist()
    if asked.split == "all":
        count = min(CALIBRATING, max(LEAST if scales else 1, len(order) // 4))
        order, others = order[count:], (asked.source, order[:count])
    else:
        source = choose(model, data, "train").source
        drawn = np.random.default_rng(0).permutation(len(source))[:CALIBRATING]
        others = source, drawn.tolist()
    return DrawnSample(asked, sorted(order[:images]), title_of(data), others, bare, batch)


class SeenSample:
    """What is known of images that a figure or a scale would be of.

    Attributes:
        varied: images that can be decoded and are more than one color
        plain: those of one color
        classes: of the images
    """

    def __init__(self) -> None:
        self.varied = 0
        self.plain = 0
        self.classes: set[tuple[int, ...]] = set()

    def add(self, images: NDArray[Any], classes: Sequence[int]) -> None:
        """Count an image, and its classes."""
        one = images[0]
        plain = bool((one == one[:1, :1]).all())
        self.plain += plain
        self.varied += not plain
        self.classes.add(tuple(sorted(classes)))

    def lacks(self, model: Model) -> str:
        """Return what they are, in words, if they are too few or too much alike."""
        if self.varied >= LEAST and len(self.classes) >= min(2, model.config.classes):
            return ""
        return (
            f"{self.varied:,} that count (classes: {len(self.classes):,}; {self.plain:,} more are "
            f"of one color): at least {LEAST} of {min(2, model.config.classes)} classes are needed"
        )


def check_calibration(model: Model, drawn: DrawnSample) -> None:
    """Refuse to take scales from few images, from one class alone, or from images of one color.

    Raises:
        DataError: the line says how many there are, and are needed.
    """
    source, numbers = drawn.others
    seen = SeenSample()
    for number in numbers:
        with suppress(ImageError):
            image = source.image(number).decode(model.config.channels)
            seen.add(image[None], source.target.classes_of(number))
    if lack := seen.lacks(model):
        raise DataError(f"int8 takes its scales from images, and {drawn.title} has {lack}")


def calibrating(model: Model, drawn: DrawnSample) -> Iterator[NDArray[Any]]:
    """Yield the images that scales are taken from, as a file takes them."""
    for _, images in batches(*drawn.others, model, drawn):
        yield images


def narrowing_cost(before: bytes, file: Path, model: Model, drawn: DrawnSample) -> dict[str, Any]:
    """Compare a file with the same one in fp32, both in onnxruntime on the same images.

    A file that takes raw images gets them as they are decoded.

    Args:
        before: the file in fp32
        file: with narrower weights
        model: that both were made from
        drawn: labeled images

    Returns:
        `accuracy` (`map` where images have several labels) of the file, and `accuracy_before`;
        `agreement`, the share of images whose prediction is the same (of decisions, where they have
        several labels); `largest_change` of a probability; `images`, `damaged`, `data`, `split`,
        `notes` and perhaps `learned_from`, as `vitlab.evaluate` has them; `bytes_before`;
        `images_per_second` and `images_per_second_before`, without decoding. Of fewer than 50
        images, or all of one class or color, neither accuracies nor changes.

    Raises:
        DataError: no image can be decoded.
        WeightsError: the prediction changes for more than 2% of the images.
    """
    source = drawn.asked.source
    count = len(drawn.numbers)
    classes_of = source.target.classes_of
    old, new = (TimedFile(runs(opened(each))) for each in (before, file))
    seen = list[int]()
    sample = SeenSample()
    for number, images in batches(source, drawn.numbers, model, drawn):
        seen.append(number)
        sample.add(np.moveaxis(images, 1, -1) if drawn.bare else images, classes_of(number))
        old.take(images)
        new.take(images)
    if not seen:
        raise DataError(f"none of the {count:,} images can be decoded")
    kept = [images for _, images in batches(source, drawn.numbers[:JUDGED], model, drawn)]
    _check_features((before, file.read_bytes()), kept, model)
    labels = labels_of(source.target).take(seen)
    tables = [_chances(each.rows, labels, model, drawn.bare) for each in (old, new)]
    compared = _compared(tables[0], tables[1], labels)
    if (changed := 1 - compared["agreement"]) > CHANGED + 1e-9:
        raise WeightsError(
            f"the file would predict another class than {model.config.name} for {percent(changed)} "
            f"of {len(seen):,} images, more than {percent(CHANGED)}: choose another --precision; "
            "nothing is written"
        )
    if lack := sample.lacks(model):
        compared = {}
        logging.getLogger("vitlab").warning(
            "what fewer bits cost is left out; images to measure it on: %s", lack
        )
    return compared | {
        "images": len(seen),
        "damaged": count - len(seen),
        "data": drawn.title,
        **drawn.asked.about,
        "bytes_before": len(before),
        "images_per_second": len(seen) / new.seconds,
        "images_per_second_before": len(seen) / old.seconds,
    }


def _check_features(files: Sequence[bytes], images: list[NDArray[Any]], model: Model) -> None:
    """Refuse a file whose features are far from those in fp32, which predictions may hide."""
    found = []
    for each in files:
        run = runs(opened(watching(each, ["features"])), ["features"])
        found.append(np.concatenate([run(batch)["features"][:1] for batch in images]))
    old, new = found
    spread = np.linalg.norm(old - (old.mean(0) if len(old) > 1 else 0))
    away = np.linalg.norm(new - old)
    if not away <= FAR * spread:
        raise WeightsError(
            f"the file would compute other features than {model.config.name}, {away / spread:.2g} "
            f"of their spread away, more than {FAR:g}: choose another --precision; nothing is "
            "written"
        )


def _compared(old: NDArray[np.float64], new: NDArray[np.float64], labels: Labels) -> dict[str, Any]:
    """Return what changed between two tables of probabilities, (n, classes)."""
    before, after = (figures(each, labels) for each in (old, new))
    main = main_of(after)
    assert main  # a classifier's
    same = (old > 0.5) == (new > 0.5) if labels.several else old.argmax(1) == new.argmax(1)
    return {
        main.name: after[main.name],
        f"{main.name}_before": before[main.name],
        "agreement": float(same.mean()),
        "largest_change": float(np.abs(new - old).max()),
    }


def _chances(
    rows: Sequence[NDArray[Any]], labels: Labels, model: Model, bare: bool
) -> NDArray[np.float64]:
    """Return probabilities, (n, classes), of what a file gave."""
    table = torch.from_numpy(np.concatenate(rows)).double()
    return (probabilities(table, model, labels) if bare else table).numpy()


def batches(
    source: Images, numbers: Sequence[int], model: Model, drawn: DrawnSample
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield each image that can be decoded, as a batch of it alone that a file takes."""
    spec = model.config.images
    for number in numbers:
        with suppress(ImageError):
            image = source.image(number)
            pixels = fitted_image(image, spec) if drawn.bare else image.decode(spec.channels)
            images = np.repeat(pixels[None], drawn.batch, 0)
            yield (
                number,
                normalize(torch.from_numpy(images), spec).numpy() if drawn.bare else images,
            )
