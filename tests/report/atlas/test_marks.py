"""Marks that can be told apart, and the two sections as a page."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from made_facts import NASTY, some
from vitlab.report.atlas import marks as marks_file
from vitlab.report.atlas.marks import COLORED, DARK, LIGHT, SHAPES, marks, sheet_uri
from vitlab.report.atlas.plotted import Atlas, Doubt, Doubts, ImageMap, Spot
from vitlab.report.drawings import theme
from vitlab.report.page import write

# Machado, Oliveira & Fernandes, A Physiologically-based Model for Simulation of Color Vision
# Deficiency, 2009, table of severity 1.0; they apply to linear RGB.
SEEN = {
    "all": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    values = np.array(list(bytes.fromhex(color[1:]))) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB, for D65."""
    ratio = (XYZ @ rgb.clip(0, 1)) / (0.9505, 1, 1.089)
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(("colors", "page"), [(LIGHT, theme.LIGHT), (DARK, theme.DARK)])
def test_colors_stand_out_whoever_looks(colors: tuple[str, ...], page: theme.Theme) -> None:
    for matrix in SEEN.values():
        seen = [lab(matrix @ linear(color)) for color in colors]
        assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 15
    for color in colors:
        low, high = sorted(float(XYZ[1] @ linear(each)) for each in (color, page["card"]))
        assert (high + 0.05) / (low + 0.05) >= 3


def test_no_two_classes_have_the_same_mark() -> None:
    own = {(LIGHT[n % len(LIGHT)], SHAPES[n % len(SHAPES)]) for n in range(COLORED)}
    assert len(own) == COLORED
    assert len(LIGHT) == len(DARK)


def drawn(classes: int, several: bool = False, name: str = "a.png") -> Atlas:
    """Six images in a grid of 4x2, the last one a mistake in doubt."""
    spots = [
        Spot(name, "class 0", "class 1", 0.75, -1 if several else n % classes, n == 5, n == 5,
             (n / 5, 1 - n / 5), (n % 4, n // 4))
        for n in range(6)
    ]  # fmt: skip
    doubt = Doubt(np.zeros((8, 8), np.uint8), name, "class 0", "class 1", 0.125, 0.75)
    lost = replace(doubt, pixels=None, other=None)
    sheet = np.zeros((20, 40, 3), np.uint8)
    shown = ImageMap(spots, sheet, 4, 2, 2.0, 9, 6)
    return Atlas(Doubts([doubt, lost], 40, 53.4, 1234, several), shown)


def page_of(folder: Path, atlas: Atlas | None, classes: int = 3) -> str:
    return write(folder / "report.html", replace(some(classes), atlas=atlas)).read_text("utf-8")


def test_both_sections_say_what_they_show(tmp_path: Path) -> None:
    page = page_of(tmp_path, drawn(3))
    for words in (
        "Of 1,234 test images, 40 are listed; about 53 wrong labels are estimated",
        "The 2 likeliest of 40", "label 12.5%", "likely class 75.0%",
        "6 of 9 test images, chosen at random", 'href="#map"', 'href="#labels"',
        'class="k2 x d e"', "--x:100.0%;--y:0.0%;--c:1;--r:1", "1 of them mistakes",
    ):  # fmt: skip
        assert words in page, words
    assert page.count('<i class="k') == 6
    assert page.index('class="k2 x d e"') > page.rindex('<i class="k1')  # drawn last, on top
    assert "<script" not in page
    assert len(page) - len(page_of(tmp_path, None)) < 20_000


def test_many_classes_and_several_labels_have_other_marks(tmp_path: Path) -> None:
    many = marks(drawn(12), [f"class {n}" for n in range(12)])
    assert many is not None
    assert many.keys == [("k0", "right", 5), ("k1", "wrong", 1)]
    several = marks(drawn(3, several=True), ["a", "b", "c"])
    assert several is not None
    assert several.keys == [("k0", "images", 6)]
    assert "each class of an image is a question of its own" in page_of(tmp_path, drawn(3, True))


def test_without_map_or_doubts(tmp_path: Path) -> None:
    page = page_of(tmp_path, None)
    assert 'id="map"' not in page
    assert 'id="labels"' not in page
    none = page_of(tmp_path, Atlas(Doubts([], 0, 0.0, 300, False), None))
    assert "None: no test image is confidently of another class" in none
    assert 'id="map"' not in none


def test_names_from_outside_are_escaped_and_cut(tmp_path: Path) -> None:
    page = page_of(tmp_path, drawn(3, name=f"{'x' * 60}{NASTY}"))
    assert NASTY not in page
    assert "<script>alert" not in page
    assert page.count("…x") == 6  # in the map, the end of a name


def test_a_sheet_is_kept_small(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3)).astype(np.uint8)
    full = sheet_uri(noise)
    monkeypatch.setattr(marks_file, "BYTES", len(full) // 3)
    assert len(sheet_uri(noise)) < len(full) / 2
