"""First screen of a report: the result and what it was measured on; last, how it was made."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from vitlab.evaluation.metrics import METRICS, Metric
from vitlab.models.unlike import FOUND
from vitlab.recipes.recipe import PROBE
from vitlab.report.curves import PROBES
from vitlab.report.facts import RunFacts
from vitlab.report.page import (
    Block,
    Card,
    Cards,
    Columns,
    Commands,
    DefinitionList,
    Gauge,
    Prose,
    ReportTable,
    Section,
    filled,
    setting,
    table_of,
)
from vitlab.units import counted, duration, epochs, percent, si, storage

PLAIN = {  # figures that everybody understands, and what they are
    "accuracy": "of all test images are right",
    "balanced_accuracy": "if every class counted alike, however many images it has",
}
PROBE_NOTES = {
    "probe": "a linear classifier on its features, 10 images per class",
    "knn": "the vote of the 20 nearest features",
}
TRIED = {"leave-one-out": "By leave-one-out, which chooses the features"}
ALIKE = (
    "Leave-one-out learns from all training images but one, folds from a smaller part of them: "
    "figures of two tables do not compare. The head is the best of those in folds; the test "
    "images played no part."
)
COSTS: dict[str, tuple[str, Any]] = {  # figure -> its title, and how it is written
    "params": ("Parameters", si),
    "macs": ("Multiply-adds per image", lambda value: si(value, 2)),
    "seconds": ("Training time", duration),
    "images_per_second": ("Images per second", lambda value: f"{value:,.{int(value < 10)}f}"),
    "peak_memory": ("Memory, at most", storage),
}


def short_model(facts: RunFacts) -> str:
    """Return the kind of model without its long form."""
    return facts.model.split("(")[0] or "Model"


def on_data(facts: RunFacts, what: str) -> str:
    """Return the heading: what was trained, and the last part of the data's name."""
    return f"{what} on {Path(facts.data).name or facts.data}"


def guessing(facts: RunFacts) -> float | None:
    """Return what the first figure would be without a model, if that is known.

    The share of the most frequent class; of mAP, the mean share of the images that have a class.
    """
    if not facts.several:
        return facts.number("majority")
    shares = [each.images for each in facts.per_class if each.images]
    images = facts.number("images")
    return sum(shares) / len(shares) / images if shares and images else None


def _main(facts: RunFacts) -> tuple[float | None, tuple[float, float] | None]:
    """Return the figure that comes first, and its 95% interval."""
    return facts.number(facts.main.name), facts.interval(facts.main.name)


def chance(facts: RunFacts) -> bool:
    """Return whether the model cannot be told from one that guesses: the interval reaches there."""
    own, ends = _main(facts)
    usual, low = guessing(facts), ends[0] if ends else own
    return usual is not None and low is not None and low <= usual


def lead(facts: RunFacts) -> str:
    """Return the result in one or two sentences."""
    (own, ends), images = _main(facts), facts.number("images")
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
    text += f" (95% interval {facts.main.range(ends)}%)." if ends else "."
    if chance(facts):
        usual = guessing(facts) or 0.0
        word = "is worse than" if (ends[1] if ends else own) < usual else "cannot be told from"
        text += f" That {word} guessing: {floor} {percent(usual)}."
    return text


def head(facts: RunFacts) -> Cards:
    """Return the figures that come first, and the scale of the first one."""
    (own, ends), usual = _main(facts), guessing(facts)
    found = [
        replace(card, note=PLAIN.get(key, card.note))
        for key, card in figure_cards(facts).items()
        if (key in PLAIN or facts.several) and METRICS[key].key
    ]
    if found and usual is not None:
        note = "a random order" if facts.several else f"always answering {_usual(facts)}"
        found.insert(1, Card("By guessing", percent(usual), note))
    if own is None or not math.isfinite(own):
        return Cards(found)
    return Cards(found, Gauge(own, ends, usual))


def more_figures(facts: RunFacts) -> ReportTable:
    """Return all figures of the test images, with what each of them is."""
    cards = figure_cards(facts).values()
    rows = [(each.label, each.note, each.value, each.range or "–") for each in cards]
    rows += [
        (PROBES[key], PROBE_NOTES[key], percent(value), "–") for key, value in probed(facts).items()
    ]
    note = (
        "The 95% interval says how far a figure might be off because the test images are a sample. "
        "Figures without one have no interval that holds for so few images."
    )
    head = ("Figure", "What it is", "Value", "95% interval")
    return ReportTable("All figures", head, rows, note=note, texts=2)


def figure_cards(facts: RunFacts) -> dict[str, Card]:
    """Return the figures of the test images that say something here, by their keys."""
    found = {}
    for key, each in METRICS.items():
        value = facts.number(key)
        if value is not None and each.of != "training" and each.tells(len(facts.classes)):
            found[key] = card_of(each, value, facts.interval(key))
    return found


def card_of(metric: Metric, value: float, ends: Sequence[float] | None) -> Card:
    """Return a figure with its interval, if that is known."""
    return Card(metric.title, metric.text(value), metric.note, metric.range(ends))


def probed(facts: RunFacts) -> dict[str, float]:
    """Return the last figures of `--probe`, by their keys."""
    return {
        key: value
        for point in facts.testing
        for key, value in point.values.items()
        if key in PROBES
    }


def _usual(facts: RunFacts) -> str:
    """Return the class that a model would name which always names the same."""
    if facts.survey is None:
        return "the most frequent class"
    counts = facts.survey.counts["train"]
    return facts.classes[counts.index(max(counts))]


def measured_on(facts: RunFacts) -> list[DefinitionList]:
    """Return the data, the model, and what the images unlike the training images come to."""
    weights, tune = facts.option("start", "weights"), facts.option("start", "tune") or "all"
    way, origin = "Fine-tuned from", _short(weights or "")
    if facts.option("recipe", "recipe") == PROBE:
        way = "Head fitted on"
    elif weights and tune != "all":
        origin += f", tune={tune}"
    return filled(
        ("Data", _short(facts.data)),
        ("Images", images_of(facts)),
        ("Classes", f"{len(facts.classes):,}" if facts.classes else ""),
        ("Unlike the training images", unlike(facts)),
        ("Model", facts.model),
        (way, origin),
        ("Trained", length(facts)),
    )


def _short(name: str) -> str:
    """Return a name without the folders of this machine; the settings have the whole of it."""
    return Path(name).name if Path(name).is_absolute() else name


def unlike(facts: RunFacts) -> str:
    """Return how many test images are unlike the training images, and how many of them are right.

    Empty where the model does not know.
    """
    if facts.unlike is None:
        return ""
    images, right = facts.unlike
    if not images:
        return f"none of the test images; {FOUND}"
    own = f"{counted(images, 'test image')}, {right:,} of them right: trust those answers less"
    return f"{own}; {FOUND}"


def images_of(facts: RunFacts) -> str:
    """Return how many images there are of each split."""
    images = facts.number("images")
    found: dict[str, float | None] = {"test": images}
    if facts.survey is not None:
        found = {"training" if name == "train" else name: count
                 for name, count in facts.survey.images.items()}  # fmt: skip
    elif facts.task:
        found = {"training": images, "held out": facts.number("held_out")}
    return ", ".join(f"{n:,.0f} {name}" for name, n in found.items() if n is not None)


def run_sections(facts: RunFacts) -> list[Section]:
    """Return what the reports of all runs end with: cost, sweep, how it was made, settings."""
    costs = filled(
        *(
            (title, form(value))
            for key, (title, form) in COSTS.items()
            if (value := facts.number(key)) is not None
        )
    )
    rows = [
        (name, field, setting(choice))
        for name, fields in facts.recipe.items()
        if isinstance(fields, dict)
        for field, choice in fields.items()
    ]
    settings = [ReportTable("All settings", ("Section", "Setting", "Value"), rows, texts=3)]
    return [
        Section("cost", "Cost", [*costs, *_parts(facts)]),
        Section("sweep", "Learning rates that were tried", [facts.sweep] if facts.sweep else []),
        Section("heads", "Heads that were tried", list_heads(facts)),
        Section("made", "How it was made", _made(facts)),
        Section("recipe", "All settings", settings if rows else []),
    ]


def list_heads(facts: RunFacts) -> list[Block]:
    """Return the heads that a probe has tried, the best first; a table has figures made alike."""
    rows: Any = facts.figures.get("tried", ())
    tables = list[Block]()
    for how in dict.fromkeys(row["how"] for row in rows if "how" in row):
        alike = [row for row in rows if row["how"] == how]
        key = "r2" if "r2" in alike[0] else "accuracy"
        alike.sort(key=lambda row: -row[key])
        columns: Columns = [
            ("Block", [str(row["layer"]) for row in alike]),
            ("Features", [row["pool"] or "features" for row in alike]),
            ("Head", [row["head"] for row in alike]),
            ("l2", [f"{row['l2']:g}" if row["l2"] else "–" for row in alike]),
            (METRICS[key].title, [METRICS[key].text(row[key]) for row in alike]),
        ]
        tables.append(table_of(TRIED.get(how, f"In {how}"), columns, texts=3))
    return [*tables, Prose(ALIKE, note=True)] if tables else []


def _parts(facts: RunFacts) -> list[ReportTable]:
    """Return the parts of the model that cost something, and their shares."""
    params, macs = (sum(getattr(part, key) for part in facts.cost) for key in ("params", "macs"))
    rows = [
        (part.name, si(part.params), percent(part.params / max(params, 1)), si(part.macs, 2),
         percent(part.macs / max(macs, 1)))
        for part in facts.cost
    ]  # fmt: skip
    head = ("Part", "Parameters", "Share", "Multiply-adds per image", "Share")
    return [ReportTable("Cost of each part", head, rows)] if rows else []


def _made(facts: RunFacts) -> list[DefinitionList | Commands]:
    """Return how the run was made, and what it takes to repeat it."""
    parts = [f"{name} {version}" for name, version in facts.versions.items() if name != "git"]
    if revision := facts.versions.get("git"):
        parts.append(f"revision {revision[:10]}" + "+" * revision.endswith("+"))
    own = [f"{key} {name}" for key in ("transform", "loss") if (name := facts.option("code", key))]
    seed, precision = (facts.option("recipe", name) for name in ("seed", "precision"))
    about = filled(
        ("Own code", ", ".join(own)),
        ("Date", _date(str(facts.run.get("started", "")))),
        ("Seed", "" if seed is None else str(seed)),
        ("Device", ", ".join(filter(None, (facts.device, precision)))),
        ("Fingerprint of the data", str(facts.run.get("fingerprint", ""))[:12]),
        ("Checksum of names and sizes, of data not read whole", _files_alone(facts)[:12]),
        ("Versions", ", ".join(parts)),
    )
    words = (
        "With the same data, versions and number of threads this gives the same bits on a CPU; "
        "run.toml, beside this page, has every setting"
    )
    command = str(facts.run.get("command", ""))
    return [*about, Commands([(words, command)])] if command else [*about]


def _files_alone(facts: RunFacts) -> str:
    """Return the checksum of the data's files where it stands for the contents; else nothing."""
    return "" if facts.run.get("fingerprint") else str(facts.run.get("data_files", ""))


def length(facts: RunFacts) -> str:
    """Return how long the training was: epochs, steps, time; nothing without points."""
    if not facts.training:
        return ""
    last = max((*facts.training, *facts.testing), key=lambda point: point.step)
    batch, time = facts.option("recipe", "batch"), facts.number("seconds")
    steps = counted(last.step, "step") + (f" of {batch} images" if batch else "")
    return f"{epochs(last.epoch)}: {steps}" + (f", {duration(time)}" if time else "")


def changes(facts: RunFacts) -> list[str]:
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
