"""Report of a run without labels: what its task makes of images, its figures, what to do next."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.evaluation.figure_tables import table_of_boxes, table_of_targets
from vitlab.evaluation.metrics import METRICS
from vitlab.models.model import Model
from vitlab.progress import named_if_slow
from vitlab.report import headline
from vitlab.report.curves import PROBES, Curve, learning_curves
from vitlab.report.facts import RunFacts, facts_of
from vitlab.report.next_steps import next_steps
from vitlab.report.page import (
    Block,
    Card,
    Cards,
    Page,
    Prose,
    ReportTable,
    Section,
    Thumbnail,
    Thumbnails,
    write_page,
)
from vitlab.report.thumbnails import picture
from vitlab.runs.run_folder import RunFolder
from vitlab.units import percent

SIDE = 128  # pixels of a picture, at most
TASKS = {  # its title, what is learned, and from what
    "masked-patch": ("Masked patch prediction", "to predict {target} of {hidden}"),
    "tokenizer": ("Image tokenizer", "to write images in codes and to draw them again"),
    "beit": ("BEiT", "to predict the codes of {hidden}"),
    "mae": ("Masked autoencoder", "to fill in {hidden}"),
    "dino": ("Self-distillation (DINO)", "to answer alike to different crops of an image"),
    "lejepa": ("Joint embedding (LeJEPA)", "to embed different crops of an image alike"),
    "detect": ("Object detection", "to find objects"),
    "regress": ("Regression", "to estimate numbers"),
    "segment": ("Segmentation", "to segment images"),
}
LABELS = {"detect": "with boxes", "regress": "with numbers", "segment": "with masks"}
TARGETS = {"mean-color": "the mean color", "downsized": "4x4 colors", "pixels": "the pixels"}
USUAL = ("loss", "map", "lr", "seconds", *PROBES)  # what the journals of all tasks have


def perplexity(nats: float) -> float:
    """Return e to the entropy; infinity where that is too large a number."""
    return math.exp(nats) if nats < 700 else math.inf


FIGURES = {
    "color_error": Curve(
        "Color error", best="low", note="mean absolute error of hidden mean colors, from 0 to 1"
    ),
    "pixel_error": Curve(
        "Pixel error", best="low", note="mean squared error of hidden pixels, from 0 to 1"
    ),
    "error": Curve(
        "Reconstruction error", best="low", note="mean squared error of pixels, from 0 to 1"
    ),
    "agreement": Curve(
        "Code agreement", share=True, best="high", note="hidden patches whose code was predicted"
    ),
    "accuracy": Curve("Accuracy", share=True, best="high", note="predictions that are right"),
    "pixel_accuracy": Curve("Pixel accuracy", share=True, best="high", note="of random crops"),
    "class_accuracy": Curve("Class accuracy", share=True, best="high", note="of matched objects"),
    "target_error": Curve(
        "Error", best="low", note="mean absolute one, in deviations of the targets"
    ),
    "box_overlap": Curve("Box IoU", share=True, best="high", note="of matched objects"),
    "entropy": Curve(
        "Code perplexity", of=perplexity, note="as many codes, used equally often, are as diverse"
    ),
    "teacher_entropy": Curve(
        "Entropy of an answer", note="nats, of the teacher; 0 is a single prototype"
    ),
    "mean_entropy": Curve(
        "Entropy of the mean answer", note="nats; 0 is one answer for all images: a collapse"
    ),
    "disagreement": Curve("Disagreement", note="nats, of student and teacher on other crops"),
    "view_distance": Curve("Distance of crops", note="mean squared, of their embeddings"),
    "non_normality": Curve("Regularizer", note="0 where embeddings are an isotropic Gaussian"),
    "feature_rank": Curve(
        "Rank of features", best="high", note="directions that held-out images use (RankMe)"
    ),
    "lidar": Curve(
        "LiDAR", best="high", note="directions that tell images apart, whatever their crop"
    ),
    "dead_features": Curve(
        "Dead features", True, "low", note="channels that hardly differ between images"
    ),
    "feature_spread": Curve("Spread of features", note="0 where all images have the same"),
}
COLUMNS = {
    "masked": "hidden patches are gray",
    "predicted": "hidden patches as they are predicted",
    "reconstructed": "hidden patches as they are predicted",
    "agreement": "hidden patches: green where the predicted code is the tokenizer's, red where not",
    "decoded": "the tokenizer's picture of the predicted codes, and of the true ones elsewhere",
    "from its codes": "what the tokenizer makes of the image's codes alone",
    "found": "objects that are likelier than not",
}


@named_if_slow("drawing the page")
def write_pretext_report(
    folder: RunFolder,
    model: Model,
    figures: dict[str, Any],
    pictures: dict[str, NDArray[np.uint8]],
    notes: list[str],
    own: Sequence[Section] = (),
) -> Path:
    """Write a run's `report.html`.

    Args:
        folder: the run's
        model: what the run has saved
        figures: the run's figures, the keys of the command's JSON
        pictures: from `PretextTask.pictures`: uint8 (B, H, W, 3) by column; none where there are
            none
        notes: remarks for the reader
        own: further sections, of the task

    Returns:
        The report's file.

    Raises:
        DiskError: the file cannot be written.
    """
    facts = replace(facts_of(folder, figures, model, notes), pictures=pictures, sections=own)
    facts = replace(facts, figures=headline.probed(facts) | figures)
    return write_page(folder.report, pretext_page(facts))


def pretext_page(facts: RunFacts) -> Page:
    """Return the report of a run that learned without labels."""
    result: list[Block] = [Cards(key_cards(facts)), *headline.measured_on(facts)]
    if targets := facts.figures.get("targets"):
        result.append(ReportTable("Targets, on the test images", *table_of_targets(targets)))
    if facts.task == "detect" and (classes := facts.figures.get("classes")):
        result.append(ReportTable("Classes, on the test images", *table_of_boxes(classes)))
    sections = [
        Section("result", "Result", result, False),
        *facts.sections,
        Section("pictures", "What it makes of images", _pictures(facts), False),
        Section("uses", "What to do next", [next_steps(facts)], False),
        Section("curves", "Learning curves", learning_curves(facts, own_figures(facts))),
        *headline.run_sections(facts),
    ]
    title = headline.on_data(facts, TASKS[facts.task][0])
    notes = [*facts.notes, *headline.changes(facts)]
    return Page(title, lead(facts), sections, notes, kicker="report")


def lead(facts: RunFacts) -> str:
    """Return what was learned, from how many images, and the loss, in two sentences."""
    options = facts.recipe.get("pretext", {})
    images, loss = facts.number("images"), facts.number("loss")
    hidden, target = "hidden patches", TARGETS.get(options.get("target", ""), "the colors")
    if "mask_ratio" in options:
        hidden += f" ({options['mask_ratio']:.0%} of each image)"
    _, what = TASKS[facts.task]
    text = f"{headline.short_model(facts)} learned {what.format(target=target, hidden=hidden)}"
    how = LABELS.get(facts.task, "without labels")
    text += f", from {images:,.0f} images {how}." if images else f", {how}."
    return text if loss is None else f"{text} Its loss on held-out images is {loss:.4g}."


def key_cards(facts: RunFacts) -> list[Card]:
    """Return the figures that come first: of test images, the loss, the task's own, the probe's."""
    losses = [each.values.get("loss", math.nan) for each in facts.training]
    losses = [each for each in losses if math.isfinite(each)]
    held_out, loss = facts.number("held_out"), facts.number("loss")
    notes = [f"mean of {held_out:,.0f} images"] if held_out else []
    notes += [f"{losses[-1]:.4g} in training"] if losses else []
    found = [
        headline.card_of(each, value, facts.interval(each.name))
        for each in METRICS.values()
        if each.of in ("boxes", "numbers") and each.key
        if (value := facts.number(each.name)) is not None
    ]
    found += [] if loss is None else [Card("Held-out loss", f"{loss:.4g}", "; ".join(notes))]
    for name, own in own_figures(facts).items():
        if (value := facts.number(name)) is not None and (name in FIGURES or name not in METRICS):
            found.append(Card(own.title, own.shown(value), own.note))
    return found + [
        Card(title, percent(share), headline.PROBE_NOTES[name])
        for name, title in PROBES.items()
        if (share := facts.number(name)) is not None
    ]


def own_figures(facts: RunFacts) -> dict[str, Curve]:
    """Return the task's own figures in the journal's order; an unknown one keeps its name."""
    names = dict.fromkeys(key for each in (*facts.testing, *facts.training) for key in each.values)
    return {name: FIGURES.get(name) or _curve_of(name) for name in names if name not in USUAL}


def _curve_of(name: str) -> Curve:
    if metric := METRICS.get(name):
        return Curve(metric.title, metric.unit == "percent", metric.better)
    return Curve(name.replace("_", " ").capitalize())


def _pictures(facts: RunFacts) -> list[Block]:
    """Return the pictures of a few held-out images, those of an image side by side."""
    columns = facts.pictures
    count = min((len(column) for column in columns.values()), default=0)
    if not count:
        return []
    items = [
        Thumbnail(
            tuple(picture(column[row], SIDE) for column in columns.values()),
            f"{row + 1}: {' · '.join(columns)}",
        )
        for row in range(count)
    ]
    words = [f"{name}: {COLUMNS[name]}." for name in columns if name in COLUMNS]
    text = " ".join(["Held-out images, of which nothing was learned.", *words])
    return [Thumbnails(items, "wide"), Prose(text, note=True)]
