"""The confusion matrix, the confused pairs, and the classes by their figures."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.evaluation.per_class import ClassFigures, worst_first
from vitlab.report.drawings.theme import LEVELS
from vitlab.report.facts import Facts

MATRIX = 40  # most classes whose matrix is a table; of more, it is a picture
NUMBERS = 20  # most classes whose matrix shows numbers
LISTED = 120  # most classes that are all listed; else the worst
WORST = 40


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix: its images, its CSS class, its share of the row, its pictures."""

    count: int
    shade: str
    share: float
    link: str = ""


@dataclass(frozen=True)
class Row:
    """A class of the table: its figures, and its places in each order that a reader may choose."""

    figures: ClassFigures
    training: int | None
    predicted: int
    by_f1: int
    by_name: int
    by_images: int


def anchor(truth: int, guess: int) -> str:
    """Return the id of the pictures of a confusion."""
    return f"m-{truth}-{guess}"


def anchors(facts: Facts) -> set[str]:
    """Return the ids of all confusions that have pictures."""
    return {anchor(*each.pair) for each in facts.mistakes if each.pair}


def matrix(facts: Facts) -> list[tuple[str, int, list[Cell]]]:
    """Return a row per true class: its name, its number of images, its cells; none if too large."""
    if len(facts.classes) > MATRIX or not facts.confusion.images:
        return []
    there, levels, rows = anchors(facts), shades(facts), []
    for truth, (name, counts) in enumerate(
        zip(facts.classes, facts.confusion.dense(), strict=True)
    ):
        total = int(counts.sum())
        cells = [
            Cell(
                count,
                f"{'r' if guess == truth else 'w'}{levels[truth, guess]}" if count else "",
                count / max(total, 1),
                anchor(truth, guess) if anchor(truth, guess) in there else "",
            )
            for guess, count in enumerate(counts.tolist())
        ]
        rows.append((name, total, cells))
    return rows


def shades(facts: Facts) -> NDArray[np.int64]:
    """Return the shade of each cell, 0 to `LEVELS`: its share of the row, of mistakes its root.

    A few mistakes in a hundred matter most: the root makes them visible.
    """
    counts = facts.confusion.dense()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    strength = np.where(np.eye(len(shares), dtype=bool), shares, np.sqrt(shares))
    levels: NDArray[np.int64] = np.ceil(strength * LEVELS - 1e-9).astype(np.int64)
    return levels


def pairs(facts: Facts) -> list[tuple[str, str, int, float, str]]:
    """Return the most confused pairs: truth, prediction, images, share, id of their pictures.

    Fewer where the matrix shows them, none of two classes.
    """
    few, there = len(facts.classes) <= NUMBERS, anchors(facts)
    place = {name: number for number, name in enumerate(facts.classes)}
    rows = []
    for each in facts.confused[: 8 if few else 20] if len(facts.classes) > 2 else []:
        link = anchor(place[each.true], place[each.predicted])
        shown = link if link in there else ""
        rows.append((each.true, each.predicted, each.images, each.share, shown))
    return rows


def rows(facts: Facts) -> list[Row]:
    """Return the classes that have test images, lowest F1 first; of very many, the worst."""
    worst = worst_first(facts.per_class)
    shown = worst if len(facts.per_class) <= LISTED else worst[:WORST]
    place = {name: number for number, name in enumerate(facts.classes)}
    own = [place.get(each.name) for each in shown]
    by_name, by_images = (
        np.argsort(np.argsort(keys, kind="stable"), kind="stable").tolist()
        for keys in ([number or 0 for number in own], [-each.images for each in shown])
    )
    training = facts.survey.counts["train"] if facts.survey else None
    return [
        Row(
            each,
            None if training is None or number is None else training[number],
            facts.predicted[number] if facts.predicted and number is not None else 0,
            rank,
            by_name[rank],
            by_images[rank],
        )
        for rank, (each, number) in enumerate(zip(shown, own, strict=True))
    ]


def never_predicted(facts: Facts) -> list[tuple[str, int]]:
    """Return the classes that have test images and are never predicted, and how many images."""
    if not facts.predicted:
        return []
    there = zip(facts.per_class, facts.predicted, strict=True)
    return [(each.name, each.images) for each, count in there if each.images and not count]
