"""What stands above the report of a run without labels, and what to do with its model."""

import math
import shlex
from collections.abc import Callable
from pathlib import Path

from vitlab.report import headline
from vitlab.report.headline import Card
from vitlab.report.pretext.pretext_facts import PretextFacts
from vitlab.report.pretext.pretext_words import TITLES, learned, words_of
from vitlab.units import percent

PROBES = {
    "probe": ("10-shot accuracy", "a linear classifier on its features, 10 images per class"),
    "knn": ("20-NN accuracy", "the vote of the 20 nearest features"),
}


def title(facts: PretextFacts) -> str:
    """Return the heading: the task and the data."""
    data = headline.data(facts)
    return f"{TITLES.get(facts.task, facts.task.capitalize())} on {Path(data).name or data}"


def lead(facts: PretextFacts) -> str:
    """Return what was learned, from how many images, and the loss, in two sentences."""
    options = facts.recipe.get("pretext", {})
    images, loss = headline.number(facts, "images"), headline.number(facts, "loss")
    masked = "mask_ratio" in options and facts.task in ("masked-patch", "beit", "mae")
    what = learned(facts.task, options.get("target", ""), options["mask_ratio"] if masked else None)
    kind = facts.model.split("(")[0] if "(" in facts.model else facts.model
    text = f"{kind or 'The model'} learned {what}"
    text += f", from {images:,.0f} images without labels." if images else ", without labels."
    if loss is not None:
        text += f" Its loss on held-out images is {_number(loss)}."
    return text


def key_cards(facts: PretextFacts) -> list[Card]:
    """Return the figures that come first: held-out loss, the task's own, and the probe's."""
    losses = [point.loss for point in facts.training if math.isfinite(point.loss)]
    held_out = headline.number(facts, "held_out")
    note = f"mean of {held_out:,.0f} images" if held_out else ""
    note += "; " * bool(note and losses) + (f"{_number(losses[-1])} in training" if losses else "")
    rows: list[tuple[str, str, Callable[[float], str], str]] = [
        ("loss", "Held-out loss", _number, note)
    ]
    rows += [
        (name, (own := words_of(name)).title, own.shown, own.note)
        for name in facts.names
        if name in facts.figures
    ]
    rows += [(key, title, percent, note) for key, (title, note) in PROBES.items()]
    return headline.cards(facts, *rows)


def about(facts: PretextFacts) -> list[tuple[str, str]]:
    """Return how the run was made: data, model, task, length, date, seed, device."""
    recipe, start = facts.recipe.get("recipe", {}), facts.recipe.get("start", {})
    images, held_out = (headline.number(facts, key) for key in ("images", "held_out"))
    counts = [f"{images:,.0f} training"] if images else []
    counts += [f"{held_out:,.0f} held out"] if held_out else []
    options = facts.recipe.get("pretext", {})
    rows = [
        ("Data", headline.data(facts)),
        ("Images", ", ".join(counts)),
        ("Labels", "none were used"),
        ("Model", facts.model),
        ("Task", facts.task),
        ("Tokenizer", str(options.get("tokenizer", "")) if facts.task == "beit" else ""),
        ("Started from", str(start.get("weights", ""))),
        ("Trained", headline.length(facts)),
        ("Date", headline.date(str(facts.run.get("started", "")))),
        ("Seed", str(recipe.get("seed", ""))),
        ("Device", ", ".join(filter(None, (headline.device(facts), recipe.get("precision"))))),
    ]
    return [(name, value) for name, value in rows if value]


def uses(facts: PretextFacts) -> list[tuple[str, str]]:
    """Return what can be done with the model: a phrase and its command."""
    run = shlex.quote(str(facts.figures.get("run", "")) or "RUN")
    data = shlex.quote(headline.data(facts) or "DATA")
    if facts.task == "tokenizer":
        return [
            ("Learn to predict its codes", f"vitlab pretrain {data} --task beit --tokenizer {run}")
        ]
    return [
        ("Fine-tune it on labeled images", f"vitlab finetune DATA --from {run}"),
        ("Measure its features with few labels", f"vitlab fewshot {run} DATA"),
        ("Write its features into a table", f"vitlab embed {run} DATA --out features.parquet"),
        ("Look inside it", f"vitlab inspect {run} IMAGE… --out inside"),
    ]


def _number(value: float) -> str:
    return f"{value:.4g}"
