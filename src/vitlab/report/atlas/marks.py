"""How the classes of a map are told apart: colors that color-blind readers can tell, and shapes.

Five colors and four shapes give twenty different marks. The colors stand out from the page by a
contrast of 3 (WCAG 2.2, success criterion 1.4.11) and from each other under all three kinds of
color blindness; tests compute both.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from vitlab.report.atlas.plotted import Atlas, ImageMap, Spot

LIGHT = ("#1f5fc0", "#d06000", "#0a9a80", "#8e1f5c", "#1c1e22")
DARK = ("#4c8df0", "#f0a030", "#2fd0a8", "#d0508f", "#f3f1ee")
SHAPES = (
    "circle(50%)",
    "inset(7%)",
    "polygon(50% 0, 100% 93%, 0 93%)",
    "polygon(50% 0, 100% 50%, 50% 100%, 0 50%)",
)
COLORED = 10  # most classes that have a mark of their own; of more, right and wrong have
RIGHT, WRONG = 0, 1  # marks of right and wrong predictions
BYTES = 230_000  # of the picture of all thumbnails, at most
NAME = 48  # characters of a name in the map: the end of a path says most
QUALITIES = (82, 70, 55, 40, 25)


@dataclass(frozen=True)
class Mark:
    """One image as the page needs it: its CSS classes and variables, and the end of its name."""

    kind: str
    place: str
    name: str
    spot: Spot


@dataclass(frozen=True)
class Marks:
    """The map as the page needs it.

    Attributes:
        marks: right predictions first, so that mistakes lie above them
        keys: CSS class, name and images of each kind of mark
        sheet: a data URI of all thumbnails
        light: CSS of the marks on the light page
        dark: and on the dark one
        image_map: what it shows
        colored: whether marks stand for classes
        wrong: mistakes among the images
        doubted: images whose labels are likely wrong
    """

    marks: list[Mark]
    keys: list[tuple[str, str, int]]
    sheet: str
    light: Markup
    dark: Markup
    image_map: ImageMap
    colored: bool
    wrong: int
    doubted: int


def marks(atlas: Atlas | None, classes: Sequence[str]) -> Marks | None:
    """Return the map as the page needs it; None if there is none."""
    if atlas is None or atlas.image_map is None:
        return None
    shown = atlas.image_map
    several = any(each.kind < 0 for each in shown.spots)
    colored = len(classes) <= COLORED and not several
    order = sorted(shown.spots, key=lambda each: (each.doubted, each.wrong))
    found = [Mark(_kind(each, colored), _place(each), _end(each.name), each) for each in order]
    wrong = sum(each.wrong for each in order)
    keys = [("k0", "images", len(order))]
    if colored:
        counts = np.bincount([each.kind for each in order], minlength=len(classes)).tolist()
        keys = [(f"k{number}", name, counts[number]) for number, name in enumerate(classes)]
    elif not several:
        keys = [(f"k{RIGHT}", "right", len(order) - wrong), (f"k{WRONG}", "wrong", wrong)]
    doubted = sum(each.doubted for each in order)
    sheet, light, dark = sheet_uri(shown.sheet), rules(LIGHT), rules(DARK)
    return Marks(found, keys, sheet, light, dark, shown, colored, wrong, doubted)


def _kind(spot: Spot, colored: bool) -> str:
    """Return the CSS classes of an image: its mark, its rings, and where its picture fits."""
    own = spot.kind if colored else WRONG if spot.wrong else RIGHT
    there = (
        (f"k{own}", True),
        ("x", spot.wrong),
        ("d", spot.doubted),
        ("e", spot.at[0] > 0.5),
        ("s", spot.at[1] > 0.5),
    )
    return " ".join(name for name, holds in there if holds)


def _place(spot: Spot) -> str:
    """Return the CSS variables of an image: its point, and its cell."""
    (x, y), (column, row) = spot.at, spot.cell
    return f"--x:{100 * x:.1f}%;--y:{100 * y:.1f}%;--c:{column};--r:{row}"


def _end(name: str) -> str:
    return name if len(name) <= NAME else f"…{name[1 - NAME :]}"


def rules(colors: tuple[str, ...]) -> Markup:
    """Return the CSS of the marks: class `k3` is the mark of class 3."""
    return Markup(
        "".join(
            f".k{number}::before{{background:{colors[number % len(colors)]};"
            f"clip-path:{SHAPES[number % len(SHAPES)]}}}"
            for number in range(COLORED)
        )
    )


def sheet_uri(sheet: NDArray[np.uint8]) -> str:
    """Return a data URI of all thumbnails, of at most `BYTES` bytes if that can be done."""
    image = Image.fromarray(sheet)
    for quality in QUALITIES:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, optimize=True)
        if buffer.tell() <= BYTES:
            break
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
