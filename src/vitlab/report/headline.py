"""What stands above a report: the figures that matter, how they were made, and how to read them."""

import math
from dataclasses import dataclass, replace
from datetime import datetime
from numbers import Real
from pathlib import Path
from typing import Any

from vitlab.evaluation.metrics import METRICS, Metric
from vitlab.report.facts import Facts, Ran
from vitlab.units import duration, percent, si, storage


@dataclass(frozen=True)
class Card:
    """One key figure: its label, its value, its 95% interval, and a note on how to read it."""

    label: str
    value: str
    note: str = ""
    range: str = ""


@dataclass(frozen=True)
class Gauge:
    """The first figure on a scale from 0 to 100: value, interval, and what guessing gives."""

    value: float
    interval: tuple[float, float] | None
    guessing: float | None


def title(facts: Ran) -> str:
    """Return the heading: the kind of model and the data, without their long forms."""
    kind = facts.model.split("(")[0] if "(" in facts.model else facts.model
    return f"{kind or 'Model'} on {Path(data(facts)).name or data(facts)}"


def data(facts: Ran) -> str:
    """Return the data as the user named it."""
    return str(facts.recipe.get("data", {}).get("data", ""))


def number(facts: Ran, key: str) -> float | None:
    """Return a figure of the run if there is one."""
    figure = facts.figures.get(key)
    return float(figure) if isinstance(figure, Real) and not isinstance(figure, bool) else None


def guessing(facts: Facts) -> float | None:
    """Return what the first figure would be without a model, if that is known.

    The share of the most frequent class; of mAP, the mean share of the images that have a class.
    """
    if number(facts, "map") is None:
        return number(facts, "majority")
    shares = [each.images for each in facts.per_class if each.images]
    images = number(facts, "images")
    return sum(shares) / len(shares) / images if shares and images else None


def chance(facts: Facts) -> bool:
    """Return whether the model cannot be told from one that guesses: the interval reaches there."""
    interval, usual = _interval(facts), guessing(facts)
    return usual is not None and interval is not None and interval[0] <= usual


def lead(facts: Facts) -> str:
    """Return the result in one or two sentences."""
    own, images = number(facts, _first(facts)), number(facts, "images")
    if own is None or not math.isfinite(own):
        return ""
    if _first(facts) == "map":
        text = f"Mean average precision {percent(own)}"
        text += f" on {images:,.0f} test images." if images else "."
        floor = "a random order gives"
    else:
        of = f"{images:,.0f}" if images is not None else "the"
        text = f"{percent(own)} of {of} test image{'s' * (images != 1)} correct."
        floor = "the most frequent class alone gives"
    if chance(facts):
        usual = guessing(facts) or 0.0
        worse = (_interval(facts) or (own, own))[1] < usual
        word = "is worse than" if worse else "cannot be told from"
        text += f" That {word} guessing: {floor} {percent(usual)}."
    return text


def gauge(facts: Facts) -> Gauge | None:
    """Return the first figure for the scale, if there is one."""
    own, usual = number(facts, _first(facts)), guessing(facts)
    if own is None or not math.isfinite(own):
        return None
    known = _first(facts) in facts.figures.get("intervals", {})
    interval = _interval(facts) if known else None
    ends = None if interval is None else (100 * interval[0], 100 * interval[1])
    return Gauge(100 * own, ends, None if usual is None else 100 * usual)


def key_cards(facts: Facts) -> list[Card]:
    """Return the figures that come first."""
    own, images = number(facts, "accuracy"), number(facts, "images")
    right = ""
    if own is not None and images is not None and math.isfinite(own):
        right = f"{own * images:,.0f} of {images:,.0f} test images correct"
    usual = cards(facts, ("majority", "Majority rate", percent, _usual(facts)))
    found = [_card(facts, each) for each in METRICS.values() if each.key and _known(facts, each)]
    if found and right:
        found[0] = replace(found[0], note=right)
    return found[:1] + usual + found[1:]


def more_cards(facts: Facts) -> list[Card]:
    """Return the other figures of the test images."""
    return [_card(facts, each) for each in METRICS.values() if not each.key and _known(facts, each)]


def cost_cards(facts: Ran) -> list[Card]:
    """Return what the model and the run cost."""
    gpu = not str(facts.figures.get("device", "cpu")).startswith("cpu")
    trained = bool(facts.training)
    return cards(
        facts,
        ("params", "Parameters", si, "of the model"),
        ("macs", "MACs", lambda value: si(value, 2), "multiply-adds for one image"),
        ("seconds", "Training time" if trained else "Time", duration, "loading and steps"),
        ("images_per_second", "Images/s", _rate, "in training" if trained else "in the test"),
        ("peak_memory", "Peak memory", storage,
         "of the GPU" if gpu else "of the whole process, Python and data included"),
    )  # fmt: skip


def about(facts: Facts) -> list[tuple[str, str]]:
    """Return how the run was made: what is known of data, model, length, date, seed, device."""
    recipe, start = facts.recipe.get("recipe", {}), facts.recipe.get("start", {})
    rows = [
        ("Data", data(facts)),
        ("Images", _images(facts)),
        ("Classes", f"{len(facts.classes):,}"),
        ("Model", facts.model),
    ]
    if weights := start.get("weights"):
        tune = start.get("tune", "all")
        trained = f" (tune={tune})" if tune != "all" else ""
        rows.append(("Fine-tuned", f"from {weights}{trained}"))
    code = facts.recipe.get("code", {})
    own = [f"{key} {code[key]}" for key in ("transform", "loss") if code.get(key)]
    rows += [
        ("Own code", ", ".join(own)),
        ("Trained", length(facts)),
        ("Date", date(str(facts.run.get("started", "")))),
        ("Seed", str(recipe.get("seed", ""))),
        ("Device", ", ".join(filter(None, (device(facts), recipe.get("precision"))))),
    ]
    return [(name, value) for name, value in rows if value]


def repeating(facts: Ran) -> str:
    """Return what it takes to repeat the run, beside the command."""
    parts = [f"{name} {version}" for name, version in facts.versions.items() if name != "git"]
    if revision := facts.versions.get("git"):
        parts.append(f"revision {revision[:10]}" + "+" * revision.endswith("+"))
    mark = str(facts.run.get("fingerprint", ""))[:12]
    given = [f"the same data (fingerprint {mark})"] if mark else ["the same data"]
    given += [", ".join(parts)] if parts else []
    return (
        f"To repeat it: {' and '.join(given)}. On a CPU with as many threads it gives the same "
        "bits. run.toml, beside this page, has every setting."
    )


def apart(facts: Facts) -> list[str]:
    """Return why the training loss is not the quantity that is measured on held-out images."""
    objective, augment = (facts.recipe.get(name, {}) for name in ("objective", "augment"))
    several = number(facts, "map") is not None
    kind, balance = objective.get("loss", "softmax"), objective.get("balance", "none")
    words = []
    if smoothing := objective.get("label_smoothing"):
        words.append(f"label smoothing ({smoothing:g})")
    words += [name for name in ("Mixup", "CutMix") if augment.get(name.lower())]
    if several and kind == "sigmoid":
        words.append("a sum over the classes")
    if not several and kind != "softmax":
        words.append("a sigmoid per class")
    if balance in ("weights", "focal"):
        words.append("weights of the classes" if balance == "weights" else "focal loss")
    return words + ["a loss function of its own"] * bool(facts.recipe.get("code", {}).get("loss"))


def cards(facts: Ran, *rows: tuple[str, str, Any, str]) -> list[Card]:
    """Return the figures that there are; a row is a key, a label, a format and a note."""
    found = ((row, number(facts, row[0])) for row in rows)
    return [
        Card(label, form(value), note)
        for (_, label, form, note), value in found
        if value is not None
    ]


def length(facts: Ran) -> str:
    """Return how long the training was: epochs, steps, time; nothing without points."""
    if not facts.training:
        return ""
    last = max((*facts.training, *facts.testing), key=lambda point: point.step)
    batch = facts.recipe.get("recipe", {}).get("batch")
    steps = f"{last.step:,} step{'s' * (last.step != 1)}" + (f" of {batch} images" if batch else "")
    time = number(facts, "seconds")
    return f"{last.epoch:.3g} epochs: {steps}" + (f", {duration(time)}" if time else "")


def date(started: str) -> str:
    """Return a date as a reader expects it; what is no date, as it is."""
    try:
        when = datetime.fromisoformat(started)
    except ValueError:
        return started
    return f"{when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".strip()


def device(facts: Ran) -> str:
    """Return where the run was computed, as far as it is known."""
    return str(facts.figures.get("device") or facts.recipe.get("host", {}).get("device", ""))


# Parts of these


def _first(facts: Facts) -> str:
    return "map" if number(facts, "map") is not None else "accuracy"


def _interval(facts: Facts) -> tuple[float, float] | None:
    """Return the interval of the first figure, or the figure twice; None without one."""
    own = number(facts, _first(facts))
    ends = facts.figures.get("intervals", {}).get(_first(facts), (own, own))
    return None if own is None else (float(ends[0]), float(ends[1]))


def _known(facts: Facts, metric: Metric) -> bool:
    """Return whether the run has a figure, and it says something of so many classes."""
    known = metric.of != "training" and number(facts, metric.name) is not None
    return known and metric.tells(len(facts.classes))


def _card(facts: Facts, metric: Metric) -> Card:
    value = number(facts, metric.name) or 0.0
    ends = facts.figures.get("intervals", {}).get(metric.name)
    note, count = metric.note, len(facts.classes)
    if metric.name == "nll" and count > 1:
        note += f"; uniform guessing gives {math.log(count):.2f}"
    return Card(metric.title, metric.text(value), note, metric.range(ends))


def _usual(facts: Facts) -> str:
    if facts.survey is None:
        return "the most frequent class alone"
    counts = facts.survey.counts["train"]
    return f"always answering {facts.classes[counts.index(max(counts))]}"


def _images(facts: Facts) -> str:
    if facts.survey is None:
        images = number(facts, "images")
        return "" if images is None else f"{images:,.0f} test"
    words = {"train": "training"}
    return ", ".join(f"{n:,} {words.get(name, name)}" for name, n in facts.survey.images.items())


def _rate(value: float) -> str:
    return f"{value:,.{int(value < 10)}f}"
