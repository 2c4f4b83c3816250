"""From facts to one HTML file that needs nothing else: no network, no scripts, no other file."""

import importlib.resources
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.evaluation.metrics import Bin
from vitlab.files import staged_file
from vitlab.models.model import Part
from vitlab.report.facts import Facts
from vitlab.units import duration, percent, si, storage

MATRIX = 40  # the most classes with a confusion matrix, and a bar for each
NUMBERS = 20  # the most classes whose matrix has room for its numbers
WORST = 20  # pairs and classes listed where there are too many for all


def write(file: Path, facts: Facts) -> Path:
    """Render the report and put it at `file`, whole or not at all; an older one stays till then."""
    content = _render(facts).encode("utf-8", "backslashreplace")  # file names need not be Unicode
    with staged_file(file) as draft:
        draft.write_bytes(content)
    return file


def _render(facts: Facts) -> str:
    """The page as text. The drawing and template libraries load here, not with `vitlab`."""
    import jinja2

    from vitlab.report import charts as figures

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "si": si, "setting": setting}
    template = importlib.resources.files("vitlab.report").joinpath("page.html.jinja")
    bars, silent = _class_bars(facts)
    many = len(facts.classes) > MATRIX
    ece = percent(_ece(facts))
    return environment.from_string(template.read_text("utf-8")).render(
        facts=facts,
        summary=_summary(facts),
        cards=_cards(facts),
        curves=figures.curves(facts.training, facts.testing),
        lost=figures.undrawn([*facts.training, *facts.testing]),
        matrix=_matrix(facts),
        numbered=len(facts.classes) <= NUMBERS,
        upright=any(len(name) > 3 for name in facts.classes),
        pairs=_pairs(facts) if len(facts.classes) > NUMBERS else [],
        bars=bars[:WORST] if many else bars,
        silent=silent,
        spread=figures.spread([bar.share for bar in bars]) if many and bars else "",
        verdict=(verdict := _verdict(facts.reliability)),
        reliability=figures.reliability(facts.reliability, ece) if verdict else "",
        ece=ece,
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
    """A value of the recipe as a reader expects it."""
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
    """One key figure: what it is, its value, and a word on how to read it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell of the confusion matrix; `shade` is 0 to 100."""

    count: int
    shade: int
    share: float


@dataclass(frozen=True)
class Pair:
    """Images of one class that were taken for another."""

    truth: str
    guess: str
    count: int
    share: float


@dataclass(frozen=True)
class Bar:
    """How many images of one class were right."""

    name: str
    right: int
    count: int
    share: float


@dataclass(frozen=True)
class Cost:
    """A part of the model, with its share of all parameters and multiply-adds."""

    name: str
    params: int
    macs: int
    params_share: float
    macs_share: float


def _number(facts: Facts, key: str) -> float | None:
    """A figure of the run, if it was taken."""
    figure = facts.figures.get(key)
    return float(figure) if isinstance(figure, Real) else None


def _images(facts: Facts) -> int:
    return int(facts.confusion.sum())


def _summary(facts: Facts) -> str:
    """The whole run in one sentence, of what is known."""
    said = []
    accuracy, images, ece, params, seconds = (
        _number(facts, key) for key in ("accuracy", "images", "ece", "params", "seconds")
    )
    if accuracy is not None:
        of = "the" if images is None else f"{images:,.0f}"
        said.append(f"{percent(accuracy)} of {of} test image{'s' * (images != 1)} right")
    if ece is not None:
        said.append(f"its confidence is off by {percent(ece)} on average")
    model = facts.figures.get("model")
    if model:
        said.append(f"{model}" + (f" with {si(params)} parameters" if params else ""))
    if seconds is not None and facts.training:
        said.append(f"trained in {duration(seconds)}")
    return "; ".join(said) + "." if said else ""


def _cards(facts: Facts) -> list[Card]:
    """The key figures that are there."""
    count = len(facts.classes)
    images, accuracy = _number(facts, "images"), _number(facts, "accuracy")
    right = ""
    if images is not None and accuracy is not None and math.isfinite(accuracy):
        right = f"{accuracy * images:,.0f} of {images:,.0f} images"
    chance = f"nats; an even guess has {math.log(count):.2f}" if count > 1 else "nats"
    time = "Training time" if facts.training else "Time"
    rows = (
        ("accuracy", "Accuracy", percent, right),
        ("top5", "Top-5 accuracy", percent, "truth among the five best guesses"),
        ("map", "mAP", percent, "mean average precision over the classes"),
        ("micro_f1", "F1", percent, "all yeses and noes at 0.5 (micro)"),
        ("macro_f1", "F1 of a class", percent, "mean over the classes (macro)"),
        ("nll", "NLL", lambda number: f"{number:.3f}", chance),
        ("ece", "ECE", percent, "mean gap of confidence and accuracy"),
        ("params", "Parameters", si, ""),
        ("macs", "MACs", lambda number: si(number, 2), "multiply-adds for one image"),
        ("images_per_second", "Images/s", lambda number: f"{number:,.{int(number < 10)}f}", ""),
        ("peak_memory", "Peak memory", storage, ""),
        ("seconds", time, duration, ""),
    )
    return [
        Card(label, form(number), note)
        for key, label, form, note in rows
        if (number := _number(facts, key)) is not None and (key != "top5" or count > 5)
    ]


def _matrix(facts: Facts) -> list[tuple[str, int, list[Cell]]]:
    """A row a true class: its name, its number of images and its cells; empty if too large."""
    if len(facts.classes) > MATRIX or not _images(facts):
        return []
    rows = []
    for truth, (name, counts) in enumerate(zip(facts.classes, facts.confusion, strict=True)):
        total = int(counts.sum())
        shares = counts / max(total, 1)
        # A few mistakes in a hundred are what one looks for: the root makes them visible.
        shades = [s if guess == truth else math.sqrt(s) for guess, s in enumerate(shares)]
        cells = [
            Cell(int(count), round(100 * shade), float(share))
            for count, shade, share in zip(counts, shades, shares, strict=True)
        ]
        rows.append((name, total, cells))
    return rows


def _pairs(facts: Facts) -> list[Pair]:
    """The most frequent mistakes, most frequent first."""
    wrong = facts.confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:WORST]
    totals = facts.confusion.sum(axis=1)
    return [
        Pair(
            facts.classes[truth],
            facts.classes[guess],
            int(wrong[truth, guess]),
            float(wrong[truth, guess] / totals[truth]),
        )
        for truth, guess in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[truth, guess]
    ]


def _class_bars(facts: Facts) -> tuple[list[Bar], list[str]]:
    """The classes that were tested, worst first, and the names of those that were not."""
    rows = zip(facts.classes, np.diag(facts.confusion), facts.confusion.sum(axis=1), strict=True)
    known = [(name, int(right), int(count)) for name, right, count in rows]
    bars = [Bar(name, right, count, right / count) for name, right, count in known if count]
    silent = [name for name, _, count in known if not count]
    return sorted(bars, key=lambda bar: bar.share), silent


def _ece(facts: Facts) -> float:
    """The run's own figure; else what the bins say."""
    known = _number(facts, "ece")
    if known is not None:
        return known
    gaps = sum(item.count * abs(item.confidence - item.accuracy) for item in facts.reliability)
    return gaps / max(sum(item.count for item in facts.reliability), 1)


def _verdict(bins: Sequence[Bin]) -> str:
    """Whether the model is too sure of itself, from all bins together; empty without images."""
    count = sum(item.count for item in bins)
    if not count:
        return ""
    sure = sum(item.count * item.confidence for item in bins) / count
    right = sum(item.count * item.accuracy for item in bins) / count
    gap = abs(sure - right)
    if gap < 0.005:
        word = "neither over- nor under-confident as a whole"
    else:
        much = "slightly " if gap < 0.03 else "" if gap < 0.1 else "far "
        word = f"{much}{'too sure' if sure > right else 'less sure than it could be'}"
    return f"Mean confidence {percent(sure)}, accuracy {percent(right)}: the model is {word}."


def _cost(parts: Sequence[Part]) -> list[Cost]:
    """The parts, and a last row for the whole."""
    params, macs = sum(part.params for part in parts), sum(part.macs for part in parts)
    return [
        Cost(
            part.name, part.params, part.macs,
            part.params / max(params, 1), part.macs / max(macs, 1),
        )
        for part in (*parts, Part("whole model", params, macs))
    ] if parts else []  # fmt: skip
