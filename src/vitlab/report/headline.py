"""First screen of a report: the result, what it was measured on, and how to use the model now."""

import math
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitlab.evaluation.metrics import METRICS, Metric
from vitlab.recipes.recipe import PROBE
from vitlab.report.facts import Facts
from vitlab.report.page import Card, Cards, Commands, DefinitionList, Table, setting
from vitlab.units import counted, duration, epochs, percent, si, storage

PLAIN = {  # figures that everybody understands, and what they are
    "accuracy": "of all test images are right",
    "balanced_accuracy": "if every class counted alike, however many images it has",
}


PROBES = {
    "probe": ("10-shot accuracy", "a linear classifier on its features, 10 images per class"),
    "knn": ("20-NN accuracy", "the vote of the 20 nearest features"),
}


def short_model(facts: Facts) -> str:
    """Return the kind of model without its long form."""
    return facts.model.split("(")[0] or "Model"


def on_data(facts: Facts, what: str) -> str:
    """Return the heading: what was trained, and the last part of the data's name."""
    return f"{what} on {Path(facts.data).name or facts.data}"


def guessing(facts: Facts) -> float | None:
    """Return what the first figure would be without a model, if that is known.

    The share of the most frequent class; of mAP, the mean share of the images that have a class.
    """
    if not facts.several:
        return facts.number("majority")
    shares = [each.images for each in facts.per_class if each.images]
    images = facts.number("images")
    return sum(shares) / len(shares) / images if shares and images else None


def chance(facts: Facts) -> bool:
    """Return whether the model cannot be told from one that guesses: the interval reaches there."""
    own, usual = facts.number(facts.first), guessing(facts)
    low = facts.interval[0] if facts.interval else own
    return usual is not None and low is not None and low <= usual


def lead(facts: Facts) -> str:
    """Return the result in one or two sentences."""
    own, images = facts.number(facts.first), facts.number("images")
    if own is None or not math.isfinite(own):
        return ""
    if facts.several:
        text = f"Mean average precision {percent(own)}"
        text += f" on {images:,.0f} test images" if images else ""
        floor = "a random order gives"
    else:
        of = f"{images:,.0f}" if images is not None else "the"
        text = f"{percent(own)} of {of} test image{'s' * (images != 1)} correct"
        floor = "always answering the most frequent class gives"
    ends = facts.interval
    text += f" (95% interval {METRICS[facts.first].range(ends)}%)." if ends else "."
    if chance(facts):
        usual = guessing(facts) or 0.0
        word = "is worse than" if (ends[1] if ends else own) < usual else "cannot be told from"
        text += f" That {word} guessing: {floor} {percent(usual)}."
    return text


def head(facts: Facts) -> Cards:
    """Return the figures that come first, and the scale of the first one."""
    found = [
        Card(each.title, each.text(facts.number(each.name) or 0.0),
             PLAIN.get(each.name, each.note), _range(facts, each))
        for each in METRICS.values()
        if (each.name in PLAIN or facts.several) and each.key and known(facts, each)
    ]  # fmt: skip
    usual = guessing(facts)
    if found and usual is not None:
        note = "a random order" if facts.several else f"always answering {_usual(facts)}"
        found.insert(1, Card("By guessing", percent(usual), note))
    return Cards(found, _gauge(facts))


def more_figures(facts: Facts) -> Table:
    """Return all figures of the test images, with what each of them is."""
    rows = [
        (each.title, each.note, each.text(facts.number(each.name) or 0.0),
         _range(facts, each) or "–")
        for each in METRICS.values()
        if known(facts, each)
    ]  # fmt: skip
    rows += [(*PROBES[key], percent(value), "–") for key, value in probed(facts).items()]
    note = (
        "The 95% interval says how far a figure might be off because the test images are a sample. "
        "Figures without one have no interval that holds for so few images."
    )
    head = ("Figure", "What it is", "Value", "95% interval")
    return Table("All figures", head, rows, note=note, texts=2)


def probed(facts: Facts) -> dict[str, float]:
    """Return the last figures of `--probe`, by their keys."""
    return {
        key: value
        for point in facts.testing
        for key in PROBES
        if (value := getattr(point, key)) is not None
    }


def known(facts: Facts, metric: Metric) -> bool:
    """Return whether the run has a figure, and it says something of so many classes."""
    there = metric.of != "training" and facts.number(metric.name) is not None
    return there and metric.tells(len(facts.classes))


def _range(facts: Facts, metric: Metric) -> str:
    return metric.range(facts.figures.get("intervals", {}).get(metric.name))


def _usual(facts: Facts) -> str:
    """Return the class that a model would name which always names the same."""
    if facts.survey is None:
        return "the most frequent class"
    counts = facts.survey.counts["train"]
    return facts.classes[counts.index(max(counts))]


def _gauge(facts: Facts) -> Markup:
    """Return the first figure on a scale from 0 to 100: value, interval, and guessing."""
    own, usual, ends = facts.number(facts.first), guessing(facts), facts.interval
    if own is None or not math.isfinite(own):
        return Markup()
    parts = [Markup('<span class="own" style="width:{:.2f}%"></span>').format(100 * own)]
    words = [f"{own:.1%}"]
    if ends:
        span = '<span class="range" style="left:{:.2f}%;width:{:.2f}%"></span>'
        parts.append(Markup(span).format(100 * ends[0], 100 * (ends[1] - ends[0])))
        words.append(f"95% interval {100 * ends[0]:.1f} to {100 * ends[1]:.1f}")
    if usual is not None:
        parts.append(Markup('<span class="guess" style="left:{:.2f}%"></span>').format(100 * usual))
        words.append(f"guessing {usual:.1%}")
    return Markup(
        '<div class="gauge" role="img" aria-label="{}"><div class="rail">{}</div></div>'
    ).format("; ".join(words), Markup().join(parts))


def measured_on(facts: Facts) -> DefinitionList:
    """Return the data, the model, and what the images unlike the training images come to."""
    start, way = facts.recipe.get("start", {}), "Fine-tuned from"
    origin = [start["weights"]] if start.get("weights") else []
    if facts.recipe.get("recipe", {}).get("recipe") == PROBE:
        way = "Head fitted on"
    elif origin and start.get("tune", "all") != "all":
        origin += [f"tune={start['tune']}"]
    return _filled(
        ("Data", facts.data),
        ("Images", images_of(facts)),
        ("Classes", f"{len(facts.classes):,}" if facts.classes else ""),
        ("Unlike the training images", unlike(facts)),
        ("Model", facts.model),
        (way, ", ".join(origin)),
        ("Trained", length(facts)),
    )


def unlike(facts: Facts) -> str:
    """Return how many test images are unlike the training images, and how many of them are right.

    Empty where the model does not know.
    """
    if facts.unlike is None:
        return ""
    images, right = facts.unlike
    if not images:
        return "none of the test images"
    return f"{counted(images, 'test image')}, {right:,} of them right: trust those answers less"


def images_of(facts: Facts) -> str:
    """Return how many images there are of each split."""
    if facts.survey is None:
        images, held_out = facts.number("images"), facts.number("held_out")
        if facts.task:
            found = [f"{images:,.0f} training"] if images else []
            return ", ".join(found + ([f"{held_out:,.0f} held out"] if held_out else []))
        return "" if images is None else f"{images:,.0f} test"
    words = {"train": "training"}
    return ", ".join(f"{n:,} {words.get(name, name)}" for name, n in facts.survey.images.items())


def uses(facts: Facts) -> Commands:
    """Return what can be done with the model now: a phrase and its command."""
    run, data = shlex.quote(facts.folder), shlex.quote(facts.data or "DATA")
    if facts.task == "tokenizer":
        line = f"vitlab pretrain {data} --task beit --tokenizer {run}"
        return Commands([("Learn to predict its codes", line)])
    if facts.task:
        return Commands(
            [
                ("Make a classifier from labeled images", f"vitlab finetune DATA --from {run}"),
                ("Measure its features with few labels", f"vitlab fewshot {run} DATA"),
                (
                    "Write its features into a table",
                    f"vitlab embed {run} DATA --out features.parquet",
                ),
                ("Look inside it", f"vitlab inspect {run} IMAGE… --out inside"),
            ]
        )
    return Commands(
        [
            ("Ask it about photographs", f"vitlab predict {run} IMAGE…"),
            ("Give it a web page and an address for programs", f"vitlab serve {run}"),
        ]
    )


def cost_of(facts: Facts) -> DefinitionList:
    """Return what the model and the run cost."""
    gpu = not device(facts).startswith("cpu")
    place = "of the GPU" if gpu else "of the whole process"
    forms: dict[str, tuple[str, Any]] = {
        "params": ("Parameters", si),
        "macs": ("Multiply-adds per image", lambda value: si(value, 2)),
        "seconds": ("Training time" if facts.training else "Time", duration),
        "images_per_second": ("Images per second", lambda value: f"{value:,.{int(value < 10)}f}"),
        "peak_memory": (f"Memory {place}, at most", storage),
    }
    found = ((title, form, facts.number(key)) for key, (title, form) in forms.items())
    return _filled(*((title, form(value)) for title, form, value in found if value is not None))


def made(facts: Facts) -> list[DefinitionList | Commands]:
    """Return how the run was made, and what it takes to repeat it."""
    recipe, code = facts.recipe.get("recipe", {}), facts.recipe.get("code", {})
    parts = [f"{name} {version}" for name, version in facts.versions.items() if name != "git"]
    if revision := facts.versions.get("git"):
        parts.append(f"revision {revision[:10]}" + "+" * revision.endswith("+"))
    own = [f"{key} {code[key]}" for key in ("transform", "loss") if code.get(key)]
    about = _filled(
        ("Own code", ", ".join(own)),
        ("Date", _date(str(facts.run.get("started", "")))),
        ("Seed", str(recipe.get("seed", ""))),
        ("Device", ", ".join(filter(None, (device(facts), recipe.get("precision"))))),
        ("Fingerprint of the data", str(facts.run.get("fingerprint", ""))[:12]),
        ("Versions", ", ".join(parts)),
    )
    words = (
        "With the same data, versions and number of threads this gives the same bits on a CPU; "
        "run.toml, beside this page, has every setting"
    )
    command = str(facts.run.get("command", ""))
    return [about, Commands([(words, command)])] if command else [about]


def length(facts: Facts) -> str:
    """Return how long the training was: epochs, steps, time; nothing without points."""
    if not facts.training:
        return ""
    last = max((*facts.training, *facts.testing), key=lambda point: point.step)
    batch, time = facts.recipe.get("recipe", {}).get("batch"), facts.number("seconds")
    steps = counted(last.step, "step") + (f" of {batch} images" if batch else "")
    return f"{epochs(last.epoch)}: {steps}" + (f", {duration(time)}" if time else "")


def device(facts: Facts) -> str:
    """Return where the run was computed, as far as it is known."""
    return str(facts.figures.get("device") or facts.recipe.get("host", {}).get("device", ""))


def changes(facts: Facts) -> list[str]:
    """Return the options that were changed while the run went on."""
    found: Any = facts.recipe.get("changes", [])
    return [
        f"from step {each['step']:,} on, {each['option']} is {setting(each.get('after'))} "
        f"(before: {setting(each.get('before'))})"
        for each in found
    ]


def _date(started: str) -> str:
    """Return a date as a reader expects it; what is no date, as it is."""
    try:
        when = datetime.fromisoformat(started)
    except ValueError:
        return started
    return f"{when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".strip()


def _filled(*rows: tuple[str, str]) -> DefinitionList:
    """Return the rows that have a value."""
    return DefinitionList([(name, value) for name, value in rows if value])
