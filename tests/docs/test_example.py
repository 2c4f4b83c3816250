"""The example of the demo."""

import importlib
from pathlib import Path

import pytest
from PIL import Image

from docs.pages import ROOT


def test_the_example_writes_an_image_of_each_class(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    importlib.import_module("digit_images").main(tmp_path / "images")
    names = sorted(each.name for each in (tmp_path / "images").iterdir())
    assert names == [f"a-{digit}.png" for digit in range(6)]
    with Image.open(tmp_path / "images" / "a-3.png") as image:
        assert image.size == (8, 8)
