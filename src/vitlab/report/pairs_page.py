"""A page of near-duplicate images: the pairs side by side."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.duplicates.finding import Comparison
from vitlab.report.table_page import save_page, templates

MOST = 200  # pairs that a page shows
_SIDE = 192  # pixels of a picture, at most


@dataclass(frozen=True)
class Shown:
    """One pair of the page: its pictures as data URIs, their names and the score."""

    train: str
    test: str
    train_name: str
    test_name: str
    score: float
    exact: bool


def write_pairs(file: Path, compared: Comparison, title: str, command: str = "") -> Path:
    """Write the pairs as one HTML file that needs no other; return the file.

    It shows one pair of each test image at first, the surest ones first, then the others, up to
    `MOST`, and says how many are left out.

    Args:
        file: the page
        compared: the two sets and their pairs
        title: its heading
        command: what the user typed

    Raises:
        DiskError: the file cannot be written.
    """
    from vitlab.report.drawings.thumbnails import of_source  # slow to import

    pairs = compared.pairs
    order = np.lexsort((-pairs.scores, ~pairs.exact, ~_best_of_its_image(pairs.test)))[:MOST]
    shown = [
        Shown(
            of_source(compared.train, int(pairs.train[each]), _SIDE),
            of_source(compared.test, int(pairs.test[each]), _SIDE),
            compared.train.name(int(pairs.train[each])),
            compared.test.name(int(pairs.test[each])),
            float(pairs.scores[each]),
            bool(pairs.exact[each]),
        )
        for each in order
    ]
    template = templates().get_template("pairs.html.jinja")
    return save_page(
        file,
        template.render(
            title=title,
            compared=compared,
            lead=summary(compared),
            shown=shown,
            rest=len(pairs) - len(shown),
            notes=notes(compared),
            command=command,
        ),
    )


def summary(compared: Comparison) -> str:
    """Return what was found in one sentence."""
    pairs, train = compared.pairs, len(compared.train)
    if compared.within:
        images = np.union1d(pairs.test, pairs.train).size
        return (
            f"{len(pairs):,} pairs of near-duplicates among {train:,} images; {images:,} images "
            "are in a pair."
        )
    found, originals = np.unique(pairs.test).size, np.unique(pairs.train).size
    of = f"{found:,} of" if found else "None of"
    return (
        f"{of} the {len(compared.test):,} test images are near-duplicates of training images "
        f"({originals:,} of {train:,}): {len(pairs):,} pairs, {int(pairs.exact.sum()):,} of them "
        "with the same bytes."
    )


def notes(compared: Comparison) -> list[str]:
    """Return what the reader must know beside the pairs: images that could not be compared."""
    flat = sum(compared.pairs.flat[: 1 if compared.within else 2])
    blank = f"{flat:,} images are blank or nearly so, and were left out"
    return [*([blank] if flat else []), *(f"damaged: {each}" for each in compared.damaged)]


def _best_of_its_image(test: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which pairs are the first of their test image; pairs are sorted so."""
    first = np.zeros(len(test), bool)
    first[np.unique(test, return_index=True)[1]] = True
    return first
