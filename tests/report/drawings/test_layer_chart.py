"""A chart made by hand: each value at its place, and what is said of it."""

import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from vitlab.report.drawings.layer_chart import HIGH, NAMED, LayerLine, layer_chart

NAME = '<b>a & "b"'


def circles(root: Any) -> list[tuple[float, float]]:
    return [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter("circle")]


def axis(root: Any) -> np.poly1d:
    """The values of heights, from the numbers at the grid."""
    texts = [each for each in root.iter("text") if each.get("dy")]
    heights = [float(each.get("y")) for each in texts]
    numbers = [float(each.text.replace(",", "")) for each in texts]
    assert len(numbers) >= 2
    return np.poly1d(np.polyfit(heights, numbers, 1))


def test_heads_are_at_their_layers_and_values() -> None:
    values = np.random.default_rng(0).uniform(5, 90, (4, 3)).astype(np.float32)
    drawing = layer_chart(
        NAME, "pixels", [LayerLine("mean of heads", values.mean(1), "warm")], points=values, first=1
    )
    root = ET.fromstring(str(drawing))
    read, places = axis(root), circles(root)
    assert [read(y) for _, y in places] == pytest.approx(values.ravel().tolist(), abs=0.5)
    columns = np.array([x for x, _ in places]).reshape(4, 3)
    assert (columns == columns[:, :1]).all()
    assert np.diff(columns[:, 0]) == pytest.approx(np.diff(columns[:, 0]).mean(), abs=0.2)
    titles = [each.text for each in root.iter("title")]
    assert titles[4] == f"layer 2, head 2: {values[1, 1]:.3g} pixels"
    line = next(root.iter("polyline")).get("points").split()
    heights = [read(float(each.split(",")[1])) for each in line]
    assert heights == pytest.approx(values.mean(1).tolist(), abs=0.5)
    label = root.get("aria-label")
    assert label.startswith(f"{NAME}: mean of heads {values[0].mean():.3g} in layer 1, ")
    assert "pixels" in [each.text for each in root.iter("text")]


@pytest.mark.parametrize("values", [[0.2, 0.2, 0.2], [1e5, 2e6], [0.7], [np.nan, 0.5, 0.6]])
def test_any_values_can_be_drawn(values: list[float]) -> None:
    line = LayerLine("a", np.array(values, np.float32), dashed=True)
    root = ET.fromstring(str(layer_chart("x", "length", [line])))
    places = circles(root)
    assert len(places) == np.isfinite(values).sum()
    assert all(0 <= x <= 326 and 0 <= y <= HIGH for x, y in places)
    if len(values) == 2:
        assert axis(root)(places[1][1]) == pytest.approx(2e6, rel=0.02)
    assert next(root.iter("polyline")).get("stroke-dasharray")


def test_very_many_heads_have_no_names_of_their_own() -> None:
    values = np.ones((40, 16), np.float32)
    assert values.size > NAMED
    text = str(layer_chart("x", "bits", [LayerLine("m", values.mean(1))], points=values, first=1))
    assert "<title>" not in text
    assert len(re.findall("<circle", text)) == 640
