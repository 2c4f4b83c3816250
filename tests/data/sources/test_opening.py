"""DATA of every kind, also of a new one; bad DATA is refused in one line."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from sklearn.datasets import load_digits

from conftest import photo, photo_folder
from vitlab.data import open as door
from vitlab.data.decode.stored import PixelImage
from vitlab.data.labels import SingleLabels
from vitlab.data.learning import open_to_learn
from vitlab.data.loading.loader import choose_workers
from vitlab.data.prepare import copy
from vitlab.data.sources.memory import digits
from vitlab.data.sources.request import Found, Part, Request
from vitlab.data.summary import input_shape
from vitlab.errors import DataError


def test_bad_data_in_one_line(tmp_path: Path) -> None:
    for name, counts, message in (
        ("nowhere", None, "no such file or folder"),
        ("empty", {}, "is empty: put the images of each class into a folder of its name"),
        ("one", {"only": 5}, "has only one class ('only'); at least 2 are needed"),
        ("few", {"a": 1, "b": 1}, "has too few images to hold some out"),
        ("flat", {}, "has no class folders with images (its images"),
        ("x.txt", None, "is not a folder, a Parquet file"),
    ):
        if counts is not None:
            (tmp_path / name).mkdir()
            photo_folder(tmp_path / name, counts)
        photo(0).save(tmp_path / name / "a.png") if name == "flat" else None
        (tmp_path / "x.txt").write_text("x")
        with pytest.raises(DataError) as caught:
            open_to_learn(str(tmp_path / name))
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="no data given: name digits, a folder of class folders"):
        open_to_learn("")


@dataclass(frozen=True)
class Stripes:
    """A source of another kind: one file, and a line in `OPENERS`."""

    classes: tuple[str, ...] = ("dark", "light")
    in_memory: ClassVar[bool] = True

    @property
    def labels(self) -> SingleLabels:
        return SingleLabels(np.arange(20) % 2)

    def __len__(self) -> int:
        return 20

    def image(self, index: int) -> PixelImage:
        pixels = np.full((8, 8, 1), 40 + 120 * (index % 2) + index, np.uint8)
        return PixelImage(pixels, self.name(index))

    def name(self, index: int) -> str:
        return f"stripe {index}"


def test_another_kind_of_source_is_one_class_and_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def open_stripes(request: Request) -> Found | None:
        return Found([Part(Stripes())]) if request.data == "stripes" else None

    monkeypatch.setattr(door, "OPENERS", (open_stripes, *door.OPENERS))
    splits = open_to_learn("stripes", 0.5)
    assert (splits.classes, len(splits.train), len(splits.test)) == (("dark", "light"), 10, 10)
    assert input_shape(splits.train) == (8, 1)
    assert choose_workers(splits.train, None) == 0
    result = copy({"train": Stripes()}, tmp_path / "out", layout="tar", workers=0)
    assert result["images"] == 20
    copied = open_to_learn(str(tmp_path / "out")).whole
    assert copied.image(3).decode(1).tolist() == Stripes().image(3).decode(1).tolist()
    assert open_to_learn("digits").classes == tuple("0123456789")


def test_a_folder_is_a_folder_whatever_its_name(tmp_path: Path) -> None:
    for name in ("x.parquet", "y.tar", "z.csv"):
        photo_folder(tmp_path / name, {"a": 5, "b": 5})
        assert open_to_learn(str(tmp_path / name)).classes == ("a", "b")


def test_digits_are_those_of_scikit_learn() -> None:
    theirs, ours = load_digits(), digits()
    assert np.array_equal(ours.labels.values, theirs.target)
    np.testing.assert_array_equal(ours.images[..., 0], np.round(theirs.images * 255 / 16))
    assert ours.classes == tuple("0123456789")
    splits = open_to_learn("digits", test_fraction=0.5)  # the split is fixed
    assert (len(splits.train), len(splits.test)) == (1438, 359)
    assert input_shape(splits.train) == (8, 1)
