"""Decision thresholds for images with several labels, chosen by F1.

It is 0.5 unless thresholds were chosen: those of the highest F1 on validation images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import MultiLabels
from vitlab.data.settings import Columns
from vitlab.data.sources.request import Given, title_of
from vitlab.errors import OptionError
from vitlab.evaluation.calibration import validation_of
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.metrics import figures, moved_by
from vitlab.evaluation.predictions import Predictions, check_classifier, predict
from vitlab.models.model import Model
from vitlab.progress import public

Floats = NDArray[np.float64]
Per = Literal["class", "all"]


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
        columns: which columns of a list or a table hold what; None to find them
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
    check_classifier(model)
    if per not in ("class", "all"):
        raise OptionError(f"per must be class or all, not {per!r}")
    source = validation_of(model, data, columns, "choose thresholds")
    if not source.labels.several:
        raise OptionError(
            "thresholds are for several labels per image: of one label, the likeliest class counts"
        )
    done = predict(model, source, Compute(device, precision, workers=workers))
    assert isinstance(done.labels, MultiLabels)
    values = best_thresholds(done.probabilities, done.labels.values, per)
    found = Thresholds(tuple(values.tolist()), per, title_of(data), len(done.labels))
    model.provenance = model.provenance | found.provenance
    return found


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
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # of equal scores
    cuts = (ranked[ends] + np.append(ranked[ends[1:]], 0.0)) / 2
    hits = np.cumsum(truth[order], dtype=np.int64)[ends]
    f1 = np.where(cuts < ranked[ends], 2 * hits / (ends + 1 + truth.sum()), 0.0)
    if not f1.max() > 0:
        return 0.5
    best = cuts[f1 == f1.max()]
    return float(best[np.abs(best - 0.5).argmin()])


def as_json(values: Floats, classes: Sequence[str]) -> float | dict[str, float]:
    """Return thresholds as an evaluation reports them: one number if they are all the same."""
    first: float = values[0].item()
    if (values == first).all():
        return first
    return dict(zip(classes, values.tolist(), strict=True))


def given_or_kept(model: Model, given: float | None, *, several: bool) -> Floats:
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


def before_and_after(found: Thresholds, before: Floats, done: Predictions) -> dict[str, Any]:
    """Return what choosing thresholds changed, as `vitlab.evaluate` reports it.

    Args:
        found: from `choose_thresholds`
        before: the thresholds until then
        done: predictions for other images
    """
    points = {
        when: moved_by("thresholds", figures(done.probabilities, done.labels, above))
        for when, above in (("before", before), ("after", np.array(found.values)))
    }
    return {"per": found.per, "images": found.images} | points
