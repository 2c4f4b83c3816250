"""Report of a run without labels: what its task makes of images, its figures, what to do next."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitlab.models.model import Model
from vitlab.report import headline
from vitlab.report.curves import Value, learning_curves, panel
from vitlab.report.facts import Facts
from vitlab.report.gather import of_folder
from vitlab.report.page import Block, Card, Cards, Page, Plot, Prose, Raw, Section, write_page
from vitlab.report.run_page import run_sections
from vitlab.report.thumbnails import picture
from vitlab.runs.run_folder import RunFolder
from vitlab.units import percent

SIDE = 128  # pixels of a picture, at most
TITLES = {
    "masked-patch": "Masked patch prediction",
    "tokenizer": "Image tokenizer",
    "beit": "BEiT",
    "mae": "Masked autoencoder",
    "dino": "Self-distillation (DINO)",
}
TARGETS = {"mean-color": "the mean color", "downsized": "4x4 colors", "pixels": "the pixels"}
HIDING = ("masked-patch", "beit", "mae")  # tasks that hide patches


@dataclass(frozen=True)
class FigureWords:
    """How a figure of a task is shown.

    Attributes:
        title: its name for the reader
        note: how to read it
        share: whether it is written in percent
        best: which end is better, `high` or `low`; empty if neither is
        of: what is shown of the value that the journal has
    """

    title: str
    note: str = ""
    share: bool = False
    best: str = ""
    of: Callable[[float], float] = float

    def shown(self, value: float) -> str:
        """Format a value of the journal."""
        own = self.of(value)
        if self.share:
            return percent(own)
        return f"{own:,.0f}" if 1000 <= abs(own) < math.inf else f"{own:.3g}"


def exponent(value: float) -> float:
    """Return e to the value; infinity where that is too large a number."""
    return math.exp(value) if value < 700 else math.inf


FIGURES = {
    "color_error": FigureWords(
        "Color error", "mean absolute error of hidden mean colors, from 0 to 1", best="low"
    ),
    "pixel_error": FigureWords(
        "Pixel error", "mean squared error of hidden pixels, from 0 to 1", best="low"
    ),
    "error": FigureWords(
        "Reconstruction error", "mean squared error of pixels, from 0 to 1", best="low"
    ),
    "agreement": FigureWords(
        "Code agreement", "hidden patches whose code was predicted", share=True, best="high"
    ),
    "accuracy": FigureWords("Accuracy", "predictions that are right", share=True, best="high"),
    "entropy": FigureWords(
        "Code perplexity", "as many codes, used equally often, are as diverse", of=exponent
    ),
    "teacher_entropy": FigureWords(
        "Entropy of an answer", "nats, of the teacher; 0 is a single prototype"
    ),
    "mean_entropy": FigureWords(
        "Entropy of the mean answer", "nats; 0 is one answer for all images: a collapse"
    ),
    "disagreement": FigureWords("Disagreement", "nats, of student and teacher on other crops"),
    "feature_spread": FigureWords("Spread of features", "0 where all images have the same"),
}
COLUMNS = {
    "masked": "hidden patches are gray",
    "predicted": "hidden patches as they are predicted",
    "reconstructed": "hidden patches as they are predicted",
    "agreement": "hidden patches: green where the predicted code is the tokenizer's, red where not",
    "decoded": "the tokenizer's picture of the predicted codes, and of the true ones elsewhere",
    "from its codes": "what the tokenizer makes of the image's codes alone",
    "features": "patches of like features in like colors: their first three principal components",
}


def write_pretext_report(
    folder: RunFolder,
    model: Model,
    figures: dict[str, Any],
    pictures: dict[str, NDArray[np.uint8]],
    notes: list[str],
) -> Path:
    """Write a run's `report.html`.

    Args:
        folder: the run's
        model: what the run has saved
        figures: the run's figures, the keys of the command's JSON
        pictures: from `PretextTask.pictures`: uint8 (B, H, W, 3) by column; none where there are
            none
        notes: remarks for the reader

    Returns:
        The report's file.

    Raises:
        DiskError: the file cannot be written.
    """
    facts = Facts(**of_folder(folder, model, figures, notes), pictures=pictures)
    facts = replace(facts, figures=headline.probed(facts) | figures)
    return write_page(folder.report, pretext_page(facts))


def words_of(name: str) -> FigureWords:
    """Return how a figure is shown; one that is not known here keeps its name."""
    return FIGURES.get(name) or FigureWords(name.replace("_", " ").capitalize())


def pretext_page(facts: Facts) -> Page:
    """Return the report of a run that learned without labels."""
    uses = headline.uses(facts)
    own = [_curve(facts, number, name) for number, name in enumerate(_names(facts))]
    drawn = [each for each in own if each is not None]
    return Page(
        headline.on_data(facts, TITLES.get(facts.task, facts.task.capitalize() or "Run")),
        lead(facts),
        [
            Section(
                "result", "Result", [Cards(key_cards(facts)), headline.measured_on(facts)], False
            ),
            Section("pictures", "What it makes of images", _pictures(facts), False),
            Section("uses", "What to do next", [uses], False),
            Section("curves", "Learning curves", learning_curves(facts, drawn), False),
            *run_sections(facts),
        ],
        [*facts.notes, *headline.changes(facts)],
        kicker="report",
    )


def lead(facts: Facts) -> str:
    """Return what was learned, from how many images, and the loss, in two sentences."""
    options = facts.recipe.get("pretext", {})
    images, loss = facts.number("images"), facts.number("loss")
    hidden, target = "hidden patches", TARGETS.get(options.get("target", ""), "the colors")
    if "mask_ratio" in options and facts.task in HIDING:
        hidden += f" ({options['mask_ratio']:.0%} of each image)"
    what = {
        "masked-patch": f"to predict {target} of {hidden}",
        "tokenizer": "to write images in codes and to draw them again",
        "beit": f"to predict the codes of {hidden}",
        "mae": f"to fill in {hidden}",
        "dino": "to answer alike to different crops of an image",
    }.get(facts.task, "without labels")
    text = f"{headline.short_model(facts)} learned {what}"
    text += f", from {images:,.0f} images without labels." if images else ", without labels."
    return text if loss is None else f"{text} Its loss on held-out images is {loss:.4g}."


def key_cards(facts: Facts) -> list[Card]:
    """Return the figures that come first: held-out loss, the task's own, and the probe's."""
    losses = [point.loss for point in facts.training if math.isfinite(point.loss)]
    held_out, loss = facts.number("held_out"), facts.number("loss")
    notes = [f"mean of {held_out:,.0f} images"] if held_out else []
    notes += [f"{losses[-1]:.4g} in training"] if losses else []
    found = [] if loss is None else [Card("Held-out loss", f"{loss:.4g}", "; ".join(notes))]
    for name in _names(facts):
        if (value := facts.number(name)) is not None:
            own = words_of(name)
            found.append(Card(own.title, own.shown(value), own.note))
    for name, (title, note) in headline.PROBES.items():
        if (value := facts.number(name)) is not None:
            found.append(Card(title, percent(value), note))
    return found


def _names(facts: Facts) -> list[str]:
    """Return the task's own figures, in the journal's order."""
    points = (*facts.testing, *facts.training)
    return list(dict.fromkeys(name for point in points for name in point.own))


def _curve(facts: Facts, number: int, name: str) -> Plot | None:
    """Draw a figure of the task; None if it has too few values."""
    own = words_of(name)
    value: Value = lambda p: own.of(p.own[name]) if name in p.own else None  # noqa: E731
    return panel(
        f"task-{number}", own.title, facts.training, facts.testing, value, facts.held_out,
        own.best, share=own.share,
    )  # fmt: skip


def _pictures(facts: Facts) -> list[Block]:
    """Return the pictures of a few held-out images, an image a row, in tables side by side."""
    columns = facts.pictures
    count = min((len(column) for column in columns.values()), default=0)
    if not count:
        return []
    head = Markup().join(Markup('<th scope="col">{}</th>').format(name) for name in columns)
    rows = [
        Markup("<tr>{}</tr>").format(
            Markup().join(
                Markup('<td><img src="{}" alt="Image {}: {}"></td>').format(
                    picture(column[row], SIDE), row + 1, name
                )
                for name, column in columns.items()
            )
        )
        for row in range(count)
    ]
    part = -(-count // 3)
    table = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>")
    halves = [
        table.format(head, Markup().join(each))
        for each in (rows[:part], rows[part : 2 * part], rows[2 * part :])
        if each
    ]
    box = Markup('<div class="box strips">{}</div>').format(Markup().join(halves))
    words = [f"{name}: {COLUMNS[name]}." for name in columns if name in COLUMNS]
    text = " ".join(["Held-out images, of which nothing was learned.", *words])
    return [Raw(box), Prose(text, note=True)]
