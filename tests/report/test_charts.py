"""Charts: told apart, bounded in size, and drawn only where there is something."""

import math
import re
from itertools import combinations, product

import numpy as np
import pytest

from report.reading import contrast, linear
from vitlab.evaluation.reliability import Bin
from vitlab.pages.palette import DARK, LIGHT, SERIES
from vitlab.report.charts import (
    LEAST,
    SIDE,
    WARM,
    Line,
    lines,
    matrix,
    of_run,
    reliability,
    standalone,
)


def test_lines_stand_out_and_differ() -> None:
    """WCAG 2.2, 1.4.11: graphics need a contrast of 3."""
    for theme in (LIGHT, DARK):
        for number in range(len(SERIES)):
            assert contrast(theme[f"series{number}"], theme["card"]) >= 3, number


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


def lab(color: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB of a color as somebody sees it, for D65."""
    ratio = (XYZ @ (seen @ linear(color)).clip(0, 1)) / (0.9505, 1, 1.089)
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_colors_differ_whoever_looks() -> None:
    for seen, dark in product(SEEN.values(), (0, 1)):
        own = [lab(pair[dark], seen) for pair in SERIES]
        assert min(np.linalg.norm(a - b) for a, b in combinations(own, 2)) >= 30


STEPS = [float(step) for step in range(40)]


def ticks(drawing: str) -> list[str]:
    """The labels of a drawing."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing)


def test_every_run_has_a_line_in_its_color() -> None:
    drawn = [of_run(run, f"{run}", STEPS, [run + 1 / (step + 1) for step in STEPS], False)
             for run in (0, 3)]  # fmt: skip
    drawing = lines("loss", "Loss", drawn, "steps")
    assert lines("loss", "Loss", drawn, "steps") == drawing  # the same bytes
    assert "var(--blue)" in drawing  # of the first run
    assert "var(--series3)" in drawing
    assert "var(--series1)" not in drawing
    assert "Loss against steps: 0 0.025; 3 3.02." in drawing
    assert "stroke-dasharray" in drawing
    assert "var(" not in standalone(drawing)


@pytest.mark.parametrize("values", [[], [math.nan, math.inf], [1.0] * (LEAST - 1)])
def test_nothing_is_drawn_of_too_little(values: list[float]) -> None:
    assert lines("loss", "Loss", [Line("a", STEPS[: len(values)], values)], "steps") == ""


def test_lines_name_their_last_and_their_best_value() -> None:
    values = [3 - step / 40 for step in STEPS]
    testing = Line("test", [0, 10, 20, 30, 39], [2, 1.23456, 1.5, 1.5, 1.5], WARM, "-", True, "low")
    drawing = lines("loss", "Loss", [Line("training", STEPS, values), testing], "epoch")
    assert "training 2.02" in ticks(drawing)
    assert "test 1.5 (best 1.23)" in ticks(drawing)
    assert drawing.count("stroke-opacity: 0.3") == 1  # the original below its average
    shares = lines("x", "X", [Line("a", STEPS[:9], [0.5] * 9, best="high")], "epoch", share=True)
    assert shares.count("stroke-opacity: 0.3") == 0
    assert {"a 50.0%", "epoch"} <= set(ticks(shares))


def test_many_long_runs_stay_small() -> None:
    steps = [float(step) for step in range(5000)]
    drawn = [of_run(run, "", steps, list(map(math.sin, steps)), False) for run in range(20)]
    assert len(lines("x", "X", drawn, "steps", legend=False)) < 90_000


def test_names_are_escaped_and_need_no_font_of_ours(recwarn: pytest.WarningsRecorder) -> None:
    names = ["<b>&", "\u05e9\u05dc\u05d5\u05dd", "\u732b"]
    drawing = matrix("m", "<i>", np.eye(3, dtype=np.int64), names)
    assert "<b>" not in drawing
    assert "<i>" not in drawing
    assert {"&lt;b&gt;&amp;", *names[1:]} <= set(ticks(drawing))
    assert not recwarn.list


def test_a_matrix_of_many_classes_is_small(recwarn: pytest.WarningsRecorder) -> None:
    counts = np.random.default_rng(0).poisson(0.002, (1100, 1100))
    drawing = matrix("m", "many", counts, [f"c{n}" for n in range(1100)])
    assert len(drawing) < 200_000
    assert len(ticks(drawing)) < 30
    sizes = {int(side) for side in re.findall(r'<image[^>]* width="(\d+)', drawing)}
    assert sizes
    assert max(sizes) <= SIDE
    assert not recwarn.list


def test_bins_of_few_images_are_faint() -> None:
    under = [Bin(0.4, 0.5, 300, 0.45, 0.9), Bin(0.5, 0.6, 3, 0.55, 1.0)]
    faint = "opacity: 0.35"
    assert faint in reliability(under, "r", "x")
    assert {"opacity: 0.6", "opacity: 0.21"} <= set(
        re.findall(r"(opacity: [\d.]+)", reliability(under, "r", "x"))
    )
    assert faint not in reliability(under[:1], "r", "x")
    assert {"0%", "100%", "images"} <= set(ticks(reliability(under, "r", "x")))
