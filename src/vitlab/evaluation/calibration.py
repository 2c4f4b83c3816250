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
from numpy.typing import NDArray

from vitlab.data.holdout import fingerprint, with_validation
from vitlab.data.images import Images
from vitlab.data.labels import MultiLabels
from vitlab.data.settings import Columns
from vitlab.data.sources.paths import some
from vitlab.data.sources.request import Given, title_of
from vitlab.data.splits import Splits
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.answers import Floats, check_numbers, descending
from vitlab.evaluation.choosing import as_trained, open_for
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Probabilities, check_classifier, predict
from vitlab.evaluation.metrics import figures, moved_by
from vitlab.evaluation.temperature import Calibration, fitted_temperature
from vitlab.models.model import Model
from vitlab.progress import say
from vitlab.public_calls import public

Per = Literal["class", "all"]


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
) -> Images:
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


def _held_out(model: Model, splits: Splits) -> Images | None:
    """Return what the model's training held out of the training images, if this is its data."""
    if not model.provenance.get("validation"):
        return None
    inner = as_trained(model, with_validation(splits))
    same = fingerprint(inner.whole or inner.train) == model.provenance.get("fingerprint")
    return inner.validation if same else None


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
    if not source.target.several:
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
