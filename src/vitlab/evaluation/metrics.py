"""The table of metrics: each with its name, unit, direction and one function of weighted images.

Whatever prints, draws, compares or publishes figures reads `METRICS`. A metric's function takes
`Weighted` answers, weights (b, n) of n images, and gives b values: with weights of one the figure,
with how often each image is drawn in b resamples the values that an interval is made of.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vitlab.evaluation.answers import (
    Answers,
    Bools,
    Floats,
    SingleAnswers,
    Weighted,
    answers_of,
    check_numbers,
    descending,
    finite,
    mean_known,
    over_classes,
    ratio,
)
from vitlab.evaluation.reliability import calibration_error, calibration_interval, ece
from vitlab.units import percent

if TYPE_CHECKING:
    from vitlab.data.labels import Labels

Interval = tuple[float, float]
Scale = Literal["wilson", "logit", "log", "fisher", ""]
KEPT = ("Brier", "Cohen's", "R²")  # names and symbols
MOST_DIGITS = 9  # after the point
RISK = 0.05  # the share of wrong answers that `coverage_at_5` allows


Function = Callable[[Weighted], Floats]


@dataclass(frozen=True)
class Metric:
    """A figure of a classifier's answers.

    Attributes:
        name: its key in JSON
        title: what tables and pages call it
        note: what it is, in a clause
        fn: its values under b rows of weights, (b,), NaN where there is none; None of a figure
            that is measured in training, or of masks or boxes
        of: images with one label each, with several, or both; masks: pixels of images
            (evaluation/segmentation.py); boxes: of objects (evaluation/detection.py); numbers
            (evaluation/regression.py); training: no figure of answers
        unit: how it is written; percent is a share
        better: which end is better
        hub: its id on https://huggingface.co/metrics, if it has one
        interval: how it is made (evaluation/intervals), or a function of its own; empty for none
        least: images from which the interval covers as often as it says (docs/evaluation.md)
        moved_by: what changes it although the model is the same: its temperature, its thresholds
        above: it says something only of more classes than these
        columns: whether it takes the probabilities of all classes
        key: whether it stands among the first figures of a page, and in tables of several runs
    """

    name: str
    title: str
    note: str
    fn: Function | None
    of: Literal["single", "several", "both", "masks", "boxes", "numbers", "training"] = "both"
    unit: Literal["percent", "decimal", "nats"] = "percent"
    better: Literal["high", "low"] = "high"
    hub: str = ""
    interval: Scale | Callable[[Answers], Interval] = "logit"
    least: int = 100
    moved_by: Literal["", "temperature", "thresholds"] = ""
    above: int = 0
    columns: bool = False
    key: bool = field(default=False, kw_only=True)

    def score(self, value: float | None) -> float:
        """Return a value of which more is better; a score's own value by the same sign."""
        if value is None or math.isnan(value):
            return -math.inf
        return value if self.better == "high" else -value

    def tells(self, classes: int) -> bool:
        """Return whether it says something of so many classes."""
        return not self.above or classes > self.above

    @property
    def word(self) -> str:
        """Its title within a sentence: a first word that is no abbreviation in small letters."""
        first = self.title.split()[0]
        kept = first in KEPT or first[1:] != first[1:].lower()
        return self.title if kept else first.lower() + self.title[len(first) :]

    def text(self, value: float) -> str:
        """Format a value: `98.1%`, `0.1235`."""
        return percent(value) if self.unit == "percent" else self.deviation(value)

    def range(self, interval: Iterable[float] | None) -> str:
        """Format an interval, `98.1 to 99.4`; nothing without one.

        Ends that differ are written with as many digits as it takes to see that.
        """
        if interval is None:
            return ""
        low, high = interval
        for digits in range(self._decimals, MOST_DIGITS):
            ends = [f"{self._factor * each:.{digits}f}" for each in (low, high)]
            if low == high or ends[0] != ends[1]:
                break
        return " to ".join(ends)

    def deviation(self, value: float) -> str:
        """Format a standard deviation in its unit, or percentage points."""
        return f"{self._factor * value:.{self._decimals}f}"

    def gap(self, value: float, interval: Iterable[float] | None) -> str:
        """Format a difference and its interval, if it has one: `+1.7 (0.3 to 3.1) points`."""
        ends = f" ({self.range(interval)})" * (interval is not None)
        text = f"{self._factor * value:+.{self._decimals}f}{ends}"
        return (text + " points" * (self.unit == "percent")).replace("-", "−")

    @property
    def _factor(self) -> float:
        return 100.0 if self.unit == "percent" else 1.0

    @property
    def _decimals(self) -> int:
        return {"percent": 1, "decimal": 3, "nats": 4}[self.unit]


# Functions of weighted answers


def top(count: int) -> Function:
    """Return the share of images whose class is among the `count` likeliest."""
    return lambda given: given.mean(given.single.rank < count)


def precision(given: Weighted) -> Floats:
    """Return the mean precision of the classes, of one label an image those that images have.

    A class that is never predicted has precision 0.
    """
    hits, guessed, there, _ = given.counts
    return over_classes(hits, guessed, _present(given, there))


def recall(given: Weighted) -> Floats:
    """Return the mean recall of the classes; of several labels, 0 of one that no image has."""
    hits, _, there, _ = given.counts
    return over_classes(hits, there, _present(given, there))


def f1(given: Weighted) -> Floats:
    """Return the mean F1 of the classes; of several labels, 0 of one never there nor predicted."""
    hits, guessed, there, _ = given.counts
    return over_classes(2 * hits, guessed + there, _present(given, there))


def micro_f1(given: Weighted) -> Floats:
    """Return the F1 of all decisions together."""
    hits, guessed, there, _ = given.counts
    return ratio(2 * hits.sum(1), guessed.sum(1) + there.sum(1))


def mcc(given: Weighted) -> Floats:
    """Return the Matthews correlation of true and predicted classes, 0 where it has none.

    Source: Gorodkin, Comparing two K-category assignments by a K-category correlation
    coefficient, 2004.
    """
    hits, guessed, there, squares = given.counts
    total = given.total
    spread = (total**2 - (there**2).sum(1)) * (total**2 - squares)
    return ratio(total * hits.sum(1) - (there * guessed).sum(1), np.sqrt(np.maximum(spread, 0)))


def kappa(given: Weighted) -> Floats:
    """Return Cohen's kappa of true and predicted classes, 0 where chance explains everything.

    Source: Cohen, A coefficient of agreement for nominal scales, 1960.
    """
    hits, guessed, there, _ = given.counts
    by_chance = (there * guessed).sum(1)
    return ratio(given.total * hits.sum(1) - by_chance, given.total**2 - by_chance)


def auroc(given: Weighted) -> Floats:
    """Return the area under the ROC curve, one class against the rest, averaged over classes.

    It is the chance that an image of a class has a higher probability of it than an image that is
    not of it; equal probabilities count half. Classes that all images have, or none, are left out.
    """
    found = []
    for scores, own in given.columns():
        mine, upto, before, whole, rest = _ranked(given, scores, own)
        others = rest - (whole[0] - upto + whole[1] - before) / 2  # ties count half
        found.append(ratio((mine * others).sum(1), mine.sum(1) * rest[:, 0], np.nan))
    return _over_all(found, given)


def mean_average_precision(given: Weighted) -> Floats:
    """Return the mean over classes of the area under precision and recall, not interpolated.

    Images of equal probability count together, so their order does not matter. Classes that no
    image has are left out.
    """
    found = []
    for scores, own in given.columns():
        mine, upto, _, whole, _ = _ranked(given, scores, own)
        found.append(ratio((mine * ratio(upto, whole[0])).sum(1), mine.sum(1), np.nan))
    return _over_all(found, given)


def _ranked(
    given: Weighted, scores: Floats, own: Bools
) -> tuple[Floats, Floats, Floats, tuple[Floats, Floats], Floats]:
    """Return for the images of a class, highest score first, their weights and sums so far.

    These are the weight of the class with at least this score, and with a higher one; the same of
    all images; and of all images that are not of the class, (b, 1).
    """
    order, ends = descending(scores)
    places = np.flatnonzero(own[order])
    group = np.searchsorted(ends, places)  # of equal scores
    seen = np.cumsum(np.take(given.weights, order, axis=1), axis=1)
    mine = np.take(given.weights, order[places], axis=1)
    right = np.pad(np.cumsum(mine, 1), ((0, 0), (1, 0)))
    first, last = (np.searchsorted(group, group, side) for side in ("left", "right"))
    starts = np.append(-1, ends)[group]
    before = np.where(starts < 0, 0.0, seen[:, starts])
    rest = seen[:, -1:] - right[:, -1:]
    return mine, right[:, last], right[:, first], (seen[:, ends[group]], before), rest


def aurc(given: Weighted) -> Floats:
    """Return the area under the risk-coverage curve.

    It is the share of wrong answers among the most confident images, averaged over how many these
    are.

    Source: Geifman & El-Yaniv, Selective Classification for Deep Neural Networks, 2017.
    """
    group, seen, wrong = given.ranked
    return (group * ratio(wrong, seen)).sum(1) / given.total


def coverage(given: Weighted) -> Floats:
    """Return the largest share of images, most confident first, of which at most 5% are wrong."""
    _, seen, wrong = given.ranked
    return np.where(wrong <= RISK * seen, seen, 0).max(1) / given.total


METRICS = {metric.name: metric for metric in (
    Metric("accuracy", "Accuracy", "share of images whose class is the likeliest", top(1), "single",
           hub="accuracy", interval="wilson", least=5, key=True),
    Metric("map", "mAP", "mean average precision over the classes", mean_average_precision,
           "several", hub="mean_average_precision", key=True),
    Metric("top5", "Top-5 accuracy", "share of images whose class is among the five likeliest",
           top(5), "single", interval="wilson", above=5),
    Metric("nll", "NLL", "mean negative log-likelihood of the true class, in nats",
           lambda given: given.mean(given.answers.loss), "single", "nats", "low", interval="log",
           least=200, moved_by="temperature", key=True),
    Metric("bce", "Cross-entropy", "mean binary cross-entropy over images and classes, in nats",
           lambda given: given.mean(given.answers.loss), "several", "nats", "low", interval="log",
           least=200, moved_by="temperature", key=True),
    Metric("brier", "Brier score", "mean squared distance of the probabilities from the truth, "
           "summed over the classes (mean over them, if images have several labels)",
           lambda given: given.mean(given.answers.squares), unit="decimal", better="low",
           hub="brier_score", interval="log", moved_by="temperature"),
    Metric("ece", "ECE", "expected calibration error: mean gap between confidence and accuracy in "
           "15 bins (Guo et al., 2017); chance makes it larger, and the more so the fewer images",
           ece, "single", better="low", interval="", moved_by="temperature"),
    Metric("calibration_error", "Calibration error",
           "root mean square gap between confidence and accuracy without the part that chance "
           "explains (Kumar et al., 2019); 0 if chance explains all of it",
           calibration_error, "single", better="low", interval=calibration_interval,
           least=20, moved_by="temperature"),
    Metric("balanced_accuracy", "Balanced accuracy", "mean recall of the classes, so that large "
           "classes count no more than small ones", recall, "single", key=True),
    Metric("balanced_top5", "Balanced top-5 accuracy", "mean top-5 accuracy of the classes",
           lambda given: given.balanced(given.single.rank < 5), "single", above=5),
    Metric("balanced_nll", "Balanced NLL", "mean NLL of the classes, in nats",
           lambda given: given.balanced(given.answers.loss), "single", "nats", "low",
           interval="log", least=200, moved_by="temperature"),
    Metric("micro_f1", "Micro F1", "F1 of all decisions together", micro_f1, "several", hub="f1",
           moved_by="thresholds", key=True),
    Metric("macro_precision", "Macro precision", "mean precision of the classes", precision,
           moved_by="thresholds"),
    Metric("macro_recall", "Macro recall", "mean recall of the classes", recall, "several",
           moved_by="thresholds"),
    Metric("macro_f1", "Macro F1", "mean F1 of the classes", f1, hub="f1", moved_by="thresholds",
           key=True),
    Metric("exact_match", "Exact match", "share of images whose labels are predicted exactly",
           lambda given: given.mean(given.answers.right), "several", hub="exact_match",
           interval="wilson", least=5, moved_by="thresholds"),
    Metric("mcc", "MCC", "Matthews correlation coefficient of true and predicted classes: 0 for "
           "guessing, 1 if all are right (Gorodkin, 2004)", mcc, "single", "decimal",
           hub="matthews_correlation", interval="fisher"),
    Metric("kappa", "Cohen's kappa", "agreement of true and predicted classes beyond chance: 0 "
           "for guessing, 1 if all are right (Cohen, 1960)", kappa, "single", "decimal",
           interval="fisher"),
    Metric("auroc", "AUROC", "area under the ROC curve, each class against the rest, averaged over "
           "the classes; 50% is chance", auroc, hub="roc_auc", columns=True),
    Metric("aurc", "AURC", "area under the risk-coverage curve: mean share of wrong answers if "
           "only the most confident images are answered (Geifman & El-Yaniv, 2017)", aurc, "single",
           better="low", moved_by="temperature"),
    Metric("coverage_at_5", "Coverage at 5% error", "largest share of images, most confident "
           "first, of which at most 5% are wrong", coverage, "single", interval="",
           moved_by="temperature"),
    Metric("miou", "mIoU", "mean over the classes of intersection over union, the pixels of all "
           "images together", None, "masks", hub="mean_iou", least=20, key=True),
    Metric("pixel_accuracy", "Pixel accuracy", "share of pixels whose class is right", None,
           "masks", least=20, key=True),
    Metric("boundary_iou", "Boundary IoU", "mean IoU of the pixels within 2% of the diagonal of a "
           "boundary (Cheng et al., 2021)", None, "masks", least=20, key=True),
    Metric("ap50", "AP50", "mean over the classes of average precision, boxes being right from an "
           "IoU of 0.5 on (COCO)", None, "boxes", least=200, key=True),
    Metric("ap", "AP", "the same, the mean over IoUs from 0.5 to 0.95", None, "boxes",
           least=200, key=True),
    Metric("r2", "R²", "share of a number's variance that is explained, the mean over the targets",
           None, "numbers", "decimal", interval="log", least=50, key=True),
    Metric("mae", "MAE", "mean absolute error", None, "numbers", "decimal", "low", interval="log",
           least=50),
    Metric("rmse", "RMSE", "root mean square error", None, "numbers", "decimal", "low",
           interval="log"),
    Metric("coverage_50", "Within 50%", "share of images within the 50% interval of their answer",
           None, "numbers", interval="wilson", least=5),
    Metric("coverage_90", "Within 90%", "the same of the 90% interval", None, "numbers",
           interval="wilson", least=5),
    Metric("loss", "Held-out loss", "loss on held-out images", None, "training", "nats", "low"),
    Metric("probe", "10-shot accuracy", "of a classifier fitted to ten images a class", None,
           "training"),
    Metric("knn", "20-NN accuracy", "of the vote of the 20 nearest neighbors", None, "training"),
)}  # fmt: skip
"""By name, in the order of JSON, tables and pages; an entry may be added."""

MAIN = {
    "several": "map", "classify": "accuracy", "detect": "ap50", "segment": "miou",
    "regress": "r2", "unlabeled": "loss",
}  # fmt: skip
"""The figure by which models of a task are compared: on held-out images, in sweeps and lists."""


def main_of(figures: Collection[str]) -> Metric | None:
    """Return the figure that says how good a model is, of those that are there."""
    return next((METRICS[name] for name in MAIN.values() if name in figures), None)


def values_of(given: Weighted, metrics: Iterable[Metric] | None = None) -> dict[str, Floats]:
    """Return each metric that fits the answers, and can be computed of what is kept: (b,)."""
    single = isinstance(given.answers, SingleAnswers)
    whole = not single or given.probabilities is not None
    kind = "single" if single else "several"
    return {
        metric.name: metric.fn(given)
        for metric in (METRICS.values() if metrics is None else metrics)
        if metric.fn and metric.of in (kind, "both") and (whole or not metric.columns)
    }


def figures(
    probabilities: Floats, labels: "Labels", threshold: Floats | float = 0.5
) -> dict[str, Any]:
    """Return the metrics of predictions by their names, and `images`, their number.

    A metric that these images have no value of is None: `map` where no image has a label, `auroc`
    where no class has images both of it and not.

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        threshold: above which a class is predicted where images have several: one number, or
            (classes,)

    Raises:
        DataError: a probability is NaN, or a label no class of the model.
    """
    return figures_of(answers_of(probabilities, labels, threshold), probabilities)


def figures_of(answers: Answers, probabilities: Floats) -> dict[str, Any]:
    """Return the same of answers that are known.

    Raises:
        DataError: a probability is NaN.
    """
    check_numbers(probabilities)
    found = values_of(Weighted(answers, np.ones((1, len(answers))), probabilities))
    return {name: finite(value[0]) for name, value in found.items()} | {"images": len(answers)}


def moved_by(cause: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that a temperature, or thresholds, change; or their intervals."""
    known = ((name, METRICS.get(name)) for name in figures)
    return {name: figures[name] for name, each in known if each and each.moved_by == cause}


def curve_point(probabilities: Floats, labels: "Labels") -> dict[str, float]:
    """Return `loss` and `accuracy` for a learning curve.

    With several labels per image: binary cross-entropy, the share of all decisions at 0.5 that are
    right, and `map`.
    """
    answers = answers_of(probabilities, labels)
    given = Weighted(answers, np.ones((1, len(answers))))
    loss = float(given.mean(answers.loss)[0])
    if isinstance(answers, SingleAnswers):
        return {"loss": loss, "accuracy": float((answers.rank < 1).mean())}
    right = answers.chosen == answers.table.astype(bool)
    area = float(mean_average_precision(given)[0])
    return {"loss": loss, "accuracy": float(right.mean()), "map": area}


def _present(given: Weighted, there: Floats) -> Bools:
    """Return which classes have a part in a mean: of one label an image, those that images have."""
    return there > 0 if isinstance(given.answers, SingleAnswers) else np.ones_like(there, bool)


def _over_all(found: list[Floats], given: Weighted) -> Floats:
    """Return the mean over classes of those that have a value: (b,)."""
    return mean_known(np.stack([np.full(len(given.weights), np.nan), *found]), 0)
