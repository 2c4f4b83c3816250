"""Calibration: temperature and thresholds that are fitted to validation images and kept in a model.

One number divides all logits of a model before they become probabilities. It is fitted on the
validation split, by its negative log-likelihood, and changes neither the logits nor which class is
the likeliest. Source: Guo et al., On Calibration of Modern Neural Networks, 2017, section 4.2.

Where images have several labels, a class is predicted whose probability is above its threshold: 0.5
unless thresholds were chosen, those of the highest F1 on validation images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.holdout import fingerprint, with_validation
from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.data.settings import Columns
from vitlab.data.sources.paths import some
from vitlab.data.sources.request import Given, Splits, title_of
from vitlab.data.sources.source import Source
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.answers import Floats, Integers, check_numbers, descending
from vitlab.evaluation.choosing import as_trained, open_for
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Probabilities, check_classifier, predict
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.metrics import figures, moved_by
from vitlab.models.model import Model
from vitlab.progress import say
from vitlab.public_calls import public

Per = Literal["class", "all"]
BLOCK = 2_000_000  # logits whose softmax is in memory at once


@dataclass(frozen=True)
class Calibration:
    """A temperature, and what it was fitted on.

    Attributes:
        temperature: divides the logits; above 1 for a model that was too confident
        data: as for training; its validation split was used
        images: how many there are in it
    """

    temperature: float
    data: str
    images: int

    @property
    def provenance(self) -> dict[str, Any]:
        """What is saved with the weights."""
        about = {"data": self.data, "images": self.images}
        return {"temperature": self.temperature, "calibration": about}

    def change(self, model: Model, done: Probabilities) -> dict[str, Any]:
        """Return what it changed, as `vitlab.evaluate` reports it.

        Args:
            model: that has the temperature now
            done: predictions for other images, with their logits
        """
        raw = done.labels.probabilities(torch.from_numpy(done.logits)).numpy()
        points = {}
        for key, probabilities in (("before", raw), ("after", done.probabilities)):
            each = with_intervals(probabilities, done.labels)
            ranges = moved_by("temperature", each["intervals"])
            points[key] = moved_by("temperature", each) | {"intervals": ranges}
        return {"temperature": model.temperature, "images": self.images} | points


@public(model=Model)
def calibrate(
    model: Model,
    data: Given,
    *,
    columns: Columns | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    workers: int | None = None,
) -> Calibration:
    """Fit a model's temperature on the validation split of a data set, and keep it in the model.

    `vitlab.evaluate`, `vitlab.classify` and the commands divide its logits by it from then on, and
    `vitlab.save` and `Delta.save` store it. `model(images)` returns the same logits as before.

    Args:
        model: from `vitlab.load` or a run; its `provenance` gets `temperature` and `calibration`
        data: as for training, also labeled images in memory
        columns: the columns of a list or a table; None to find them
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose

    Returns:
        The temperature, and what it was fitted on.

    Raises:
        DataError: there is no validation split, no temperature fits it best, or a logit is no
            number.
        OptionError: the model has no classifier.
    """
    source = validation_of(model, data, columns)
    done = predict(model, source, Compute(device, precision, workers=workers), logits=True)
    check_numbers(done.logits, "images a logit")
    found = Calibration(
        fitted_temperature(done.logits, done.labels), title_of(data), len(done.labels)
    )
    kept = _moved(model.provenance, model.temperature, found.temperature)
    model.provenance = model.provenance | kept | found.provenance
    return found


def _moved(provenance: dict[str, Any], before: float, after: float) -> dict[str, Any]:
    """Return chosen thresholds for another temperature: the same decisions as with the one before.

    A threshold is a probability, sigmoid(logit / temperature).
    """
    if "thresholds" not in provenance:
        return {}
    logits = np.log(values := np.array(provenance["thresholds"])) - np.log1p(-values)
    return {"thresholds": (1 / (1 + np.exp(-logits * before / after))).tolist()}


def validation_of(
    model: Model, data: Given, columns: Columns | None = None, purpose: str = "calibrate"
) -> Source:
    """Return the validation images of a data set, which are never those of its test split.

    They are its validation split, or what the model's training held out to decide when to stop.

    Raises:
        DataError: there are none.
        OptionError: the model has no classifier.
    """
    check_classifier(model)
    splits = open_for(model, data, columns)
    found = splits.validation or _held_out(model, splits)
    if found is None:
        raise DataError(
            f"{title_of(data)} has no validation split to {purpose} on, and the test images must "
            "stay unseen: add one beside train and test (a folder or files named val; in a list, "
            "val in a column named split), or train with --patience, which holds one out"
        )
    return found


def _held_out(model: Model, splits: Splits) -> Source | None:
    """Return what the model's training held out of the training images, if this is its data."""
    if not model.provenance.get("validation"):
        return None
    inner = as_trained(model, with_validation(splits))
    same = fingerprint(inner.whole or inner.train) == model.provenance.get("fingerprint")
    return inner.validation if same else None


def fitted_temperature(logits: Floats, labels: Labels) -> float:
    """Return the temperature of the least negative log-likelihood.

    Where images have several labels, that is the mean binary cross-entropy. It is convex in
    1 / temperature, so that its slope has one root.

    Args:
        logits: (n, classes)
        labels: of the same n images

    Raises:
        DataError: there is no minimum, because the model makes no mistake on these images, or is no
            better than guessing.
    """
    from scipy import optimize  # slow to import

    scores, own = _decisions(logits, labels)
    scores = scores - scores.max(1, keepdims=True)
    mine = np.take_along_axis(scores, own[:, None], axis=1)[:, 0]
    if not mine.any():
        raise DataError(
            f"the model makes no mistake on the {len(logits):,} validation images, so that no "
            "temperature fits best: use more of them, or leave it uncalibrated"
        )
    if _slope(0.0, scores, mine) >= 0:
        raise DataError(
            f"on the {len(logits):,} validation images the model is no better than guessing, so "
            "that no temperature fits: check that their labels are those of the model"
        )
    high = 1.0
    while _slope(high, scores, mine) < 0:
        high *= 2
    return 1 / float(optimize.brentq(_slope, 0.0, high, (scores, mine), xtol=1e-14, rtol=1e-13))


def temperature_of(logits: Floats, labels: Labels) -> float:
    """Return what calibrates logits, however good they are; 1 if nothing does.

    Where all are right, as if one more, of the median margin, had been wrong.

    Args:
        logits: (n, classes)
        labels: of the same n images
    """
    scores, own = _decisions(logits, labels)
    if (scores.argmax(1) == own).all():
        two = np.sort(scores, 1)[:, -2:]
        row = np.zeros((1, scores.shape[1]))
        row[0, 0] = np.median(two[:, 1] - two[:, 0])
        scores = np.concatenate([scores, row])
        own = np.append(own, 1)
    try:
        return fitted_temperature(scores, SingleLabels(own))
    except DataError:  # no better than guessing
        return 1.0


def _decisions(logits: Floats, labels: Labels) -> tuple[Floats, Integers]:
    """Return scores and the right one of each row; each of several labels is one of two classes."""
    match labels:
        case SingleLabels(truth):
            return logits, truth
        case MultiLabels(table):
            scores = np.stack([np.zeros(logits.size), logits.reshape(-1)], 1)
            return scores, table.reshape(-1).astype(np.int64)


def _slope(factor: float, scores: Floats, mine: Floats) -> float:
    """Return the derivative of the summed loss with respect to the factor on the logits."""
    slope = 0.0
    count = -(-scores.size // BLOCK)
    for part, own in zip(*(np.array_split(each, count) for each in (scores, mine)), strict=True):
        chances = np.exp(factor * part)
        mean = (chances * part).sum(1) / chances.sum(1)
        slope += float((mean - own).sum())
    return slope


@dataclass(frozen=True)
class Thresholds:
    """Chosen thresholds, and what they were chosen on.

    Attributes:
        values: in the order of the classes
        per: `class`, each class its own; `all`, one for all
        data: as for training; its validation split was used
        images: how many there are in it
    """

    values: tuple[float, ...]
    per: Per
    data: str
    images: int

    @property
    def provenance(self) -> dict[str, Any]:
        """What is saved with the weights."""
        about = {"per": self.per, "data": self.data, "images": self.images}
        return {"thresholds": list(self.values), "thresholds_chosen": about}

    def change(self, before: Floats, done: Probabilities) -> dict[str, Any]:
        """Return what they changed, as `vitlab.evaluate` reports it.

        Args:
            before: the thresholds until then
            done: predictions for other images
        """
        points = {
            when: moved_by("thresholds", figures(done.probabilities, done.labels, above))
            for when, above in (("before", before), ("after", np.array(self.values)))
        }
        return {"per": self.per, "images": self.images} | points


@public(model=Model)
def choose_thresholds(
    model: Model,
    data: Given,
    per: Per = "class",
    *,
    columns: Columns | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    workers: int | None = None,
) -> Thresholds:
    """Choose the thresholds of a model for several labels per image, and keep them in the model.

    They are those of the highest F1 on the validation split of a data set, never on its test split.
    `vitlab.evaluate`, `vitlab.classify` and the commands use them from then on, and `vitlab.save`
    and `Delta.save` store them.

    Args:
        model: from `vitlab.load` or a run; its `provenance` gets `thresholds`
        data: as for training, also labeled images in memory
        per: `class`, each class the threshold of its own highest F1; `all`, one threshold, that of
            the highest F1 of all decisions together (micro)
        columns: the columns of a list or a table; None to find them
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose

    Returns:
        The thresholds, and what they were chosen on. A class that no validation image has keeps
        0.5.

    Raises:
        DataError: there is no validation split.
        OptionError: the model has no classifier, or the images have one label each.
    """
    if per not in get_args(Per):
        raise OptionError(f"per must be class or all, not {per!r}")
    source = validation_of(model, data, columns, "choose thresholds")
    if not source.labels.several:
        raise OptionError(
            "thresholds are for several labels per image: of one label, the likeliest class counts"
        )
    done = predict(model, source, Compute(device, precision, workers=workers))
    assert isinstance(done.labels, MultiLabels)
    values = best_thresholds(done.probabilities, done.labels.values, per)
    if per == "class":
        for line in _lines_on_undecided(done.labels.values, model.config.labels):
            say(line)
    found = Thresholds(tuple(values.tolist()), per, title_of(data), len(done.labels))
    model.provenance = model.provenance | found.provenance
    return found


def _lines_on_undecided(table: NDArray[np.integer[Any]], classes: Sequence[str]) -> list[str]:
    """Return lines about classes whose validation images say nothing of a threshold."""
    counts = table.sum(axis=0)
    names = np.array(classes or [str(number) for number in range(table.shape[1])])
    lines = list[str]()
    for which, is_so, then in (
        ("no validation image has", counts == 0, "keep the threshold 0.5"),
        ("every validation image has", counts == len(table), "get one below all of their scores"),
    ):
        if is_so.any():
            lines.append(f"{which} {some(names[is_so].tolist())}: such classes {then}")
    return lines


def best_thresholds(probabilities: Floats, table: NDArray[np.integer[Any]], per: Per) -> Floats:
    """Return the thresholds of the highest F1, (classes,).

    Args:
        probabilities: (n, classes)
        table: (n, classes), 1 where an image has a class
        per: one for each class, or one for all
    """
    if per == "all":
        one = best_threshold(probabilities.reshape(-1), table.reshape(-1))
        return np.full(probabilities.shape[1], one)
    pairs = zip(probabilities.T, table.T, strict=True)
    return np.array([best_threshold(scores, truth) for scores, truth in pairs])


def best_threshold(scores: Floats, truth: NDArray[np.integer[Any]]) -> float:
    """Return the threshold above which decisions have the highest F1.

    It lies halfway between two scores that occur. Of several, it is the one next to 0.5, which it
    is itself where no decision should be yes.

    Args:
        scores: (n,), in [0, 1]
        truth: (n,), 1 where yes is right
    """
    order, ends = descending(scores)
    ranked = scores[order]
    cuts = (ranked[ends] + np.append(ranked[ends[1:]], 0.0)) / 2
    hits = np.cumsum(truth[order], dtype=np.int64)[ends]
    f1 = np.where(cuts < ranked[ends], 2 * hits / (ends + 1 + truth.sum()), 0.0)
    if not f1.max() > 0:
        return 0.5
    best = cuts[f1 == f1.max()]
    return float(best[np.abs(best - 0.5).argmin()])


def thresholds_json(values: Floats, classes: Sequence[str]) -> float | dict[str, float]:
    """Return thresholds as an evaluation reports them: one number if they are all the same."""
    first: float = values[0].item()
    if (values == first).all():
        return first
    return dict(zip(classes, values.tolist(), strict=True))


def thresholds_for(model: Model, given: float | None, *, several: bool) -> Floats:
    """Return the thresholds of an evaluation, (classes,): the given one, or the model's.

    Raises:
        OptionError: a threshold outside of [0, 1), or where images have one label each.
    """
    if given is None:
        return np.array(model.thresholds)
    if not several:
        raise OptionError("threshold applies only where images have several labels: leave it out")
    if not 0 <= given < 1:
        raise OptionError(f"threshold must be at least 0 and below 1, not {given:g}")
    return np.full(model.config.classes, float(given))
