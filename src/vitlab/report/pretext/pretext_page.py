"""From the facts of a run without labels to one self-contained HTML file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitlab.report import headline
from vitlab.report.facts import Picture, Point
from vitlab.report.page import changes, cost_rows, page_templates
from vitlab.report.pretext import pretext_headline
from vitlab.report.pretext.pretext_facts import PretextFacts
from vitlab.report.pretext.pretext_words import COLUMNS, Words, words_of
from vitlab.report.table_page import save_page

if TYPE_CHECKING:
    from vitlab.report.drawings.curves import Curve, Value

SIDE = 128  # pixels of a picture, at most


@dataclass(frozen=True)
class Strip:
    """The pictures of one image, as data URIs, in the order of the columns."""

    pictures: list[str]


def write(file: Path, facts: PretextFacts) -> Path:
    """Render the report into `file`; an older one is replaced only by a complete one.

    Raises:
        DiskError: the file cannot be written.
    """
    return save_page(file, _render(facts))


def _render(facts: PretextFacts) -> str:
    """Return the page as text; the drawing and template libraries are imported here."""
    from vitlab.report.drawings import curves

    strips = _strips(facts.pictures)
    half = -(-len(strips) // 2)
    page = page_templates().get_template("pretext.html.jinja")
    return page.render(
        facts=facts,
        title=pretext_headline.title(facts),
        lead=pretext_headline.lead(facts),
        keys_=pretext_headline.key_cards(facts),
        prices=headline.cost_cards(facts),
        about=pretext_headline.about(facts),
        command=facts.run.get("command", ""),
        repeating=headline.repeating(facts),
        curves=_curves(facts),
        undrawn=curves.undrawn([*facts.training, *facts.testing]),
        columns=list(facts.pictures),
        meanings=[(name, COLUMNS[name]) for name in facts.pictures if name in COLUMNS],
        halves=[each for each in (strips[:half], strips[half:]) if each],
        uses=pretext_headline.uses(facts),
        cost=cost_rows(facts.cost),
        sections={k: v for k, v in facts.recipe.items() if isinstance(v, dict)},
        notes=[*facts.notes, *changes(facts)],
    )


def _curves(facts: PretextFacts) -> "list[Curve]":
    """Draw loss, the task's figures, the probe and the learning rate, each if it has values."""
    from vitlab.report.drawings.curves import LOSS, Quantity, panel, probes, rates

    training, testing, held_out = facts.training, facts.testing, facts.held_out
    panels = [panel(LOSS, training, testing, held_out)]
    for number, name in enumerate(facts.names):
        own = words_of(name)
        quantity = Quantity(
            f"task-{number}", own.title, _value(name, own), plain=not own.share, best=own.best
        )
        panels.append(panel(quantity, training, testing, held_out))
    panels += [*probes(testing), rates(training)]
    return [each for each in panels if each is not None]


def _value(name: str, words: Words) -> "Value":
    """Return what finds a figure of a task in a point."""

    def value(point: Point) -> float:
        return words.of(point.own[name]) if name in point.own else float("nan")

    return value


def _strips(pictures: dict[str, NDArray[np.uint8]]) -> list[Strip]:
    """Return the pictures image by image."""
    from vitlab.report.drawings.thumbnails import picture

    count = min((len(column) for column in pictures.values()), default=0)
    return [
        Strip([picture(Picture(column[row], name), SIDE) for name, column in pictures.items()])
        for row in range(count)
    ]
