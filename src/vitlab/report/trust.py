"""Whether a model's confidence can be trusted: the diagrams, and what they say in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.reliability import Bin
from vitlab.report.facts import Facts
from vitlab.report.headline import number
from vitlab.units import percent

if TYPE_CHECKING:
    from markupsafe import Markup

EVEN = 0.005  # a gap of confidence and accuracy below it is none
HIGH = 0.03  # an expected calibration error that needs a reason


@dataclass(frozen=True)
class Trust:
    """The section on calibration.

    Attributes:
        diagrams: each with a heading
        verdict: whether the model is over- or underconfident, and why, in sentences
        ece: as text
        table: when ("before", "after"), its figures, their names; empty if not calibrated
    """

    diagrams: "list[tuple[str, Markup]]"
    verdict: str
    ece: str
    table: list[tuple[str, list[str], list[str]]]


def trust(facts: Facts) -> Trust:
    """Return the section; without diagrams if there are no images."""
    from vitlab.report.drawings.charts import reliability  # slow to import

    verdict, diagrams = _verdict(facts), []
    for bins, ece, when in _diagrams(facts) if verdict else []:
        heading = f"{when.capitalize() or 'Confidence and accuracy'}: ECE {percent(ece)}"
        diagrams.append((heading, reliability(bins, percent(ece), when)))
    return Trust(diagrams, verdict, percent(_ece(facts)), _table(facts))


def _diagrams(facts: Facts) -> list[tuple[Sequence[Bin], float, str]]:
    """Return the bins, each with their ECE: once, or before and after calibrating."""
    before = facts.figures.get("calibration", {}).get("before", {})
    if not facts.uncalibrated:
        return [(facts.reliability, _ece(facts), "")]
    return [
        (facts.uncalibrated, before["ece"], "before"),
        (facts.reliability, _ece(facts), "after"),
    ]


def _table(facts: Facts) -> list[tuple[str, list[str], list[str]]]:
    found, rows = facts.figures.get("calibration", {}), []
    for when in ("before", "after"):
        each = found.get(when, {})
        known = [key for key in each if key in METRICS]
        ends = {key: METRICS[key].range(each.get("intervals", {}).get(key)) for key in known}
        texts = [
            METRICS[key].text(each[key]) + f" ({ends[key]})" * bool(ends[key]) for key in known
        ]
        if known:
            rows.append((when, texts, [METRICS[key].title for key in known]))
    return rows


def _ece(facts: Facts) -> float:
    """Return the run's expected calibration error, or that of its bins."""
    own = number(facts, "ece")
    if own is not None:
        return own
    gaps = sum(item.count * abs(item.confidence - item.accuracy) for item in facts.reliability)
    return gaps / max(sum(item.count for item in facts.reliability), 1)


def _verdict(facts: Facts) -> str:
    """Return in words whether the model is overconfident over all bins; empty without images."""
    count = sum(item.count for item in facts.reliability)
    if not count:
        return ""
    confidence = sum(item.count * item.confidence for item in facts.reliability) / count
    accuracy = sum(item.count * item.accuracy for item in facts.reliability) / count
    gap = abs(confidence - accuracy)
    if gap < EVEN:
        word = "well calibrated on average"
    else:
        degree = "slightly " if gap < 0.03 else "" if gap < 0.1 else "strongly "
        word = f"{degree}{'over' if confidence > accuracy else 'under'}confident"
    text = (
        f"Mean confidence {percent(confidence)}, accuracy {percent(accuracy)}: the model is {word}."
    )
    causes = [] if facts.uncalibrated else _causes(facts)
    if causes and accuracy - confidence > EVEN and _ece(facts) > HIGH:
        text += (
            f" It was trained with {' and '.join(causes)}, which keeps confidence below accuracy; "
            "with a validation split, vitlab evaluate --calibrate makes up for it."
        )
    return text


def _causes(facts: Facts) -> list[str]:
    """Return what a model was trained with that makes it underconfident."""
    objective, augment = (facts.recipe.get(name, {}) for name in ("objective", "augment"))
    smoothing = objective.get("label_smoothing")
    causes = [f"label smoothing ({smoothing:g})"] if smoothing else []
    return causes + [name for name in ("Mixup", "CutMix") if augment.get(name.lower())]
