"""From facts to one self-contained HTML file: no network, no scripts, no other files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.evaluation.metrics import Bin
from vitlab.evaluation.per_class import Confusion, worst_first
from vitlab.models.model import Part
from vitlab.report.facts import Facts
from vitlab.report.table_page import save_page, templates
from vitlab.units import between, duration, percent, readable, si, storage

MATRIX = 40  # most classes that get a confusion matrix and a bar each
NUMBERS = 20  # most classes whose matrix shows numbers
WORST = 20  # pairs listed at most, and classes if there are too many to list all


def write(file: Path, facts: Facts) -> Path:
    """Render the report into `file`; an older one is replaced only by a complete one.

    Raises:
        DiskError: the file cannot be written.
    """
    return save_page(file, _render(facts))


def _render(facts: Facts) -> str:
    """Return the page as text; the drawing and template libraries are imported here."""
    from vitlab.report import charts as figures

    environment = templates()
    environment.filters |= {"percent": percent, "si": si, "setting": setting}
    worst = worst_first(facts.per_class)
    many = len(facts.classes) > MATRIX
    ece = percent(_ece(facts))
    return environment.get_template("page.html.jinja").render(
        facts=facts,
        summary=_summary(facts),
        cards=_cards(facts),
        curves=figures.curves(facts.training, facts.testing),
        undrawn=figures.undrawn([*facts.training, *facts.testing]),
        matrix=_matrix(facts),
        numbered=len(facts.classes) <= NUMBERS,
        upright=any(len(name) > 3 for name in facts.classes),
        pairs=_pairs(facts),
        worst=worst[:WORST] if many else worst,
        untested=[each.name for each in facts.per_class if not each.images],
        spread=figures.spread([each.recall or 0.0 for each in worst]) if many and worst else "",
        verdict=(verdict := _verdict(facts.reliability)),
        reliability=[
            figures.reliability(each, percent(value), when)
            for each, value, when in _diagrams(facts)
            if verdict
        ],
        ece=ece,
        calibration=_calibration(facts),
        mistakes=[(item, figures.picture(item.picture)) for item in facts.mistakes],
        flawless=_images(facts) > 0 and _images(facts) == int(np.trace(facts.confusion)),
        attention=[
            (item, figures.picture(item.picture), figures.overlay(item.picture, item.attention))
            for item in facts.examples
            if item.attention is not None
        ],
        cost=_cost(facts.cost),
    )


def setting(choice: Any) -> str:
    """Return a value of the recipe as a reader expects it."""
    match choice:
        case None:
            return "–"
        case bool():
            return "yes" if choice else "no"
        case list() | tuple():
            return ", ".join(setting(item) for item in choice) or "–"
        case float():
            return f"{choice:g}"
        case _:
            return str(choice) or "–"


# What the page shows


@dataclass(frozen=True)
class Card:
    """One key figure: its label, its value, its 95% interval, and a note on how to read it."""

    label: str
    value: str
    note: str = ""
    range: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell of the confusion matrix; `shade` is 0 to 100."""

    count: int
    shade: int
    share: float


@dataclass(frozen=True)
class Cost:
    """A part of the model and its share of all parameters and multiply-adds."""

    name: str
    params: int
    macs: int
    params_share: float
    macs_share: float


def _number(facts: Facts, key: str) -> float | None:
    """Return a figure of the run if there is one."""
    figure = facts.figures.get(key)
    return float(figure) if isinstance(figure, Real) else None


def _images(facts: Facts) -> int:
    return int(facts.confusion.sum())


def _summary(facts: Facts) -> str:
    """Return the run in one sentence, made of the figures that there are."""
    parts = []
    accuracy, images, ece, params, seconds = (
        _number(facts, key) for key in ("accuracy", "images", "ece", "params", "seconds")
    )
    if accuracy is not None:
        of = "the" if images is None else f"{images:,.0f}"
        parts.append(f"{percent(accuracy)} of {of} test image{'s' * (images != 1)} correct")
    if ece is not None:
        parts.append(f"its confidence is off by {percent(ece)} on average")
    model = facts.figures.get("model")
    if model:
        parts.append(
            f"{model}" + (f" with {si(params)} parameters" if params else "") + _start(facts)
        )
    if seconds is not None and facts.training:
        parts.append(f"trained in {duration(seconds)}")
    return "; ".join(parts) + "." if parts else ""


def _start(facts: Facts) -> str:
    """Return the weights that a run started from, and what it trained of them."""
    start = facts.recipe.get("start", {})
    if not start.get("weights"):
        return ""
    tune = start.get("tune", "all")
    return f", fine-tuned from {start['weights']}" + (f" (tune={tune})" if tune != "all" else "")


def _cards(facts: Facts) -> list[Card]:
    """Return a card for each key figure that there is."""
    count = len(facts.classes)
    images, accuracy = _number(facts, "images"), _number(facts, "accuracy")
    right = ""
    if images is not None and accuracy is not None and math.isfinite(accuracy):
        right = f"{accuracy * images:,.0f} of {images:,.0f} images"
        if (usual := _number(facts, "majority")) is not None:
            right += f"; the most frequent class alone: {percent(usual)}"
    chance = f"nats; uniform guessing gives {math.log(count):.2f}" if count > 1 else "nats"
    time = "Training time" if facts.training else "Time"
    rows = (
        ("accuracy", "Accuracy", percent, right),
        ("top5", "Top-5 accuracy", percent, "true class among the five most likely"),
        ("map", "mAP", percent, "mean average precision over the classes"),
        ("micro_f1", "F1", percent, "all decisions at a threshold of 0.5 (micro)"),
        ("macro_f1", "F1 per class", percent, "mean over the classes (macro)"),
        ("balanced_accuracy", "Balanced accuracy", percent, "mean recall of the classes"),
        ("nll", "NLL", lambda number: f"{number:.3f}", chance),
        ("ece", "ECE", percent, "mean gap between confidence and accuracy"),
        ("params", "Parameters", si, ""),
        ("macs", "MACs", lambda number: si(number, 2), "multiply-adds per image"),
        ("images_per_second", "Images/s", lambda number: f"{number:,.{int(number < 10)}f}", ""),
        ("peak_memory", "Peak memory", storage, ""),
        ("seconds", time, duration, ""),
    )
    return [
        Card(label, form(number), note, _range(facts, key))
        for key, label, form, note in rows
        if (number := _number(facts, key)) is not None and (key != "top5" or count > 5)
    ]


def _range(facts: Facts, key: str) -> str:
    """Return the interval of a figure, `98.1 to 99.4`; nothing if it has none."""
    scale = (1, 3) if key in ("nll", "bce") else (100, 1)
    return between(facts.figures.get("intervals", {}).get(key), *scale).strip(" ()")


def _matrix(facts: Facts) -> list[tuple[str, int, list[Cell]]]:
    """Return a row per true class: its name, its number of images, its cells; none if too large."""
    if len(facts.classes) > MATRIX or not _images(facts):
        return []
    rows = []
    for truth, (name, counts) in enumerate(zip(facts.classes, facts.confusion, strict=True)):
        total = int(counts.sum())
        shares = counts / max(total, 1)
        # A few mistakes in a hundred matter most: the root makes them visible.
        shades = [s if guess == truth else math.sqrt(s) for guess, s in enumerate(shares)]
        cells = [
            Cell(int(count), round(100 * shade), float(share))
            for count, shade, share in zip(counts, shades, shares, strict=True)
        ]
        rows.append((name, total, cells))
    return rows


def _diagrams(facts: Facts) -> list[tuple[list[Bin], float, str]]:
    """Return the reliability diagrams, each with its ECE: one, or before and after calibrating."""
    before = facts.figures.get("calibration", {}).get("before", {})
    if not facts.uncalibrated:
        return [(facts.reliability, _ece(facts), "")]
    return [
        (facts.uncalibrated, before["ece"], "before"),
        (facts.reliability, _ece(facts), "after"),
    ]


def _calibration(facts: Facts) -> list[tuple[str, list[str], list[str]]]:
    """Return what calibrating changed: when, the figures, and their names; twice, or not at all."""
    found = facts.figures.get("calibration", {})
    rows = []
    for when in ("before", "after"):
        if each := dict(readable(found.get(when, {}))):
            rows.append((when, list(each.values()), list(each)))
    return rows


def _pairs(facts: Facts) -> list[Confusion]:
    """Return the most confused pairs: fewer where the matrix shows them, none of two classes."""
    few = len(facts.classes) <= NUMBERS
    return facts.confused[: 5 if few else WORST] if len(facts.classes) > 2 else []


def _ece(facts: Facts) -> float:
    """Return the run's own figure, else that of the bins."""
    own = _number(facts, "ece")
    if own is not None:
        return own
    gaps = sum(item.count * abs(item.confidence - item.accuracy) for item in facts.reliability)
    return gaps / max(sum(item.count for item in facts.reliability), 1)


def _verdict(bins: Sequence[Bin]) -> str:
    """Return in words whether the model is overconfident over all bins; empty without images."""
    count = sum(item.count for item in bins)
    if not count:
        return ""
    confidence = sum(item.count * item.confidence for item in bins) / count
    accuracy = sum(item.count * item.accuracy for item in bins) / count
    gap = abs(confidence - accuracy)
    if gap < 0.005:
        word = "well calibrated on average"
    else:
        degree = "slightly " if gap < 0.03 else "" if gap < 0.1 else "strongly "
        word = f"{degree}{'over' if confidence > accuracy else 'under'}confident"
    return (
        f"Mean confidence {percent(confidence)}, accuracy {percent(accuracy)}: the model is {word}."
    )


def _cost(parts: Sequence[Part]) -> list[Cost]:
    """Return the parts, and a last row for the whole model."""
    params, macs = sum(part.params for part in parts), sum(part.macs for part in parts)
    return [
        Cost(
            part.name, part.params, part.macs,
            part.params / max(params, 1), part.macs / max(macs, 1),
        )
        for part in (*parts, Part("whole model", params, macs))
    ] if parts else []  # fmt: skip
