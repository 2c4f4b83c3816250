"""Page of near-duplicate images: the pairs side by side."""

from pathlib import Path

import numpy as np

from vitlab.data.duplicates.finding import Comparison
from vitlab.progress import named_if_slow
from vitlab.report.page import (
    Block,
    Page,
    Prose,
    Section,
    Thumbnail,
    Thumbnails,
    common_folder,
    write_page,
)

MOST, OPEN = 200, 15  # pairs that a page shows, and those that are not folded
_SIDE = 192  # pixels of a picture, at most


@named_if_slow("drawing the page")
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
    first, others = _pairs(compared)
    sections = [Section("pairs", "Pairs", first, False), Section("others", "More pairs", others)]
    page = Page(title, summary(compared), sections, notes(compared), command, "near-duplicates")
    return write_page(file, page)


def _pairs(compared: Comparison) -> tuple[list[Block], list[Block]]:
    """Return the first pairs as pictures, and the others."""
    from vitlab.report.thumbnails import of_source  # slow to import

    pairs, sides, within = compared.pairs, (compared.train, compared.test), compared.within
    if not len(pairs):
        return [Prose("No near-duplicates were found.")], []
    best = np.zeros(len(pairs), bool)
    best[np.unique(pairs.test, return_index=True)[1]] = True  # of each test image: they are sorted
    shown = np.lexsort((-pairs.scores, ~pairs.exact, ~best))[:MOST]
    numbers = [(int(pairs.train[each]), int(pairs.test[each])) for each in shown]
    names = [[side.name(n) for side, n in zip(sides, pair, strict=True)] for pair in numbers]
    folder = common_folder(name for pair in names for name in pair)
    items = [
        Thumbnail(
            tuple(of_source(side, n, _SIDE) for side, n in zip(sides, pair, strict=True)),
            "the same bytes" if pairs.exact[each] else f"score {pairs.scores[each]:.3f}",
            file="\n".join(name.removeprefix(folder) for name in own),
        )
        for each, pair, own in zip(shown, numbers, names, strict=True)
    ]
    left, right = ("earlier", "later") if within else ("training", "test")
    text = (
        f"Left the {left} image, right the {right} one; the score is the agreement of their "
        f"details, 1 for the same picture. The best pair of each {'' if within else 'test '}image "
        "comes first."
    )
    rest = len(pairs) - len(items)
    more: list[Block] = [Thumbnails(items[OPEN:], "wide")] if items[OPEN:] else []
    if rest:
        more.append(Prose(f"{rest:,} more pairs are not shown: --json lists them all."))
    return [Prose(text), Thumbnails(items[:OPEN], "wide")], more


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
