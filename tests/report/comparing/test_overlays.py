"""Lines of several runs: told apart, bounded in size, and drawn only where there is something."""

import math
import re

import pytest

from vitlab.report.comparing.verdicts import p_cell, p_text
from vitlab.report.drawings.overlays import Series, Spot, cost_against, overlay, swatch
from vitlab.report.drawings.theme import DARK, LIGHT, SERIES


def luminance(color: str) -> float:
    """WCAG 2.2, relative luminance."""
    shares = [value / 255 for value in bytes.fromhex(color[1:])]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in shares]
    return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_lines_stand_out_and_differ() -> None:
    """WCAG 2.2, 1.4.11: graphics need a contrast of 3."""
    for theme in (LIGHT, DARK):
        ground = luminance(theme["card"])
        for number in range(len(SERIES)):
            own = luminance(theme[f"series{number}"])
            assert (max(own, ground) + 0.05) / (min(own, ground) + 0.05) >= 3, number
    assert len({str(swatch(run)) for run in range(30)}) == 30


def test_every_run_has_a_line_in_its_color() -> None:
    steps = [float(step) for step in range(40)]
    lines = [Series(run, steps, [run + 1 / (step + 1) for step in steps], False) for run in (0, 3)]
    drawing = overlay("loss", "Loss", lines, "steps", share=False)
    assert "var(--series0)" in drawing
    assert "var(--series3)" in drawing
    assert "var(--series1)" not in drawing
    assert "Loss of 2 runs against the steps." in drawing
    assert "stroke-dasharray" in drawing


@pytest.mark.parametrize("values", [[], [math.nan, math.inf]])
def test_nothing_is_drawn_of_nothing(values: list[float]) -> None:
    lines = [Series(0, [1.0, 2.0][: len(values)], values, True)]
    assert overlay("loss", "Loss", lines, "steps", share=True) == ""


def test_many_long_runs_stay_small() -> None:
    steps = [float(step) for step in range(5000)]
    values = [math.sin(step) for step in steps]
    lines = [Series(run, steps, values, False) for run in range(20)]
    assert len(overlay("x", "X", lines, "steps", share=False)) < 60_000


def test_far_apart_costs_are_drawn_on_a_logarithmic_axis() -> None:
    near, far = (
        cost_against("c", [Spot(0, 1e6, 0.9, (0.8, 0.95)), Spot(1, cost, 0.8, None)], "MACs", "acc")
        for cost in (2e6, 5e8)
    )
    assert {"1.2 M", "1.6 M", "2 M"} <= set(re.findall(r"[\d.]+ M(?=<)", near))
    assert {"1 M", "10 M", "100 M"} <= set(re.findall(r"[\d.]+ M(?=<)", far))
    assert "run by run: 1: 1.0 M, 90.0%; 2: 500.0 M, 80.0%." in far


def test_p_values_as_text() -> None:
    assert (p_text(0.0005), p_text(0.0123), p_cell(1.0)) == ("p < 0.001", "p = 0.012", "1.000")
