"""Class folders."""

import shutil
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from sklearn.datasets import load_digits

from conftest import photo_folder
from vitlab.data import open as door
from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.decode.stored import PixelImage
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.loader import choose_workers
from vitlab.data.open import open_images
from vitlab.data.open_splits import group_by_split, open_to_learn
from vitlab.data.prepare import copy
from vitlab.data.settings import Data
from vitlab.data.sources.folders import names_below
from vitlab.data.sources.memory import digits
from vitlab.data.sources.request import Found, Part, Request
from vitlab.data.summary import input_shape
from vitlab.errors import DataError


def test_class_folders(photos: Path) -> None:
    (photos / "notes.txt").write_text("not an image")
    (photos / ".hidden").mkdir()
    (photos / "empty").mkdir()
    splits = open_to_learn(str(photos))
    assert splits.classes == ("blue", "green", "red")
    assert set(group_by_split(open_images(str(photos)))) == {"train", "test"}
    assert sum(splits.train.counts().values()) + sum(splits.test.counts().values()) == 60
    assert all(1 <= count <= 8 for count in splits.test.counts().values())  # a fifth of 20, or so
    assert any("empty: no images" in note for note in splits.notes)
    index = splits.test.target.values.tolist().index(1)
    assert "/green/" in splits.test.name(index)
    assert splits.test.image(index).content()[:4] == b"\x89PNG"
    assert input_shape(splits.train) == ((24, 32), 3)


def test_labels_follow_the_training_folder_by_name(tmp_path: Path) -> None:
    """A class missing from val/ must not renumber the others."""
    photo_folder(tmp_path / "train", {"ant": 3, "bee": 3, "cow": 3})
    photo_folder(tmp_path / "val", {"cow": 2})
    splits = open_to_learn(str(tmp_path))
    assert splits.test.target.values.tolist() == [2, 2]
    assert splits.whole is None
    assert splits.validation is None  # the only other split is what is reported on
    photo_folder(tmp_path / "test", {"ant": 1, "bee": 1})
    splits = open_to_learn(str(tmp_path))
    assert splits.validation.target.values.tolist() == [2, 2]
    assert splits.test.target.values.tolist() == [0, 1]
    photo_folder(tmp_path / "test", {"dog": 1})
    with pytest.raises(ValueError, match="contains class 'dog', which is not in the training data"):
        open_to_learn(str(tmp_path))


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    photo_folder(tmp_path, {"car": 5, "train": 5})
    assert open_to_learn(str(tmp_path)).classes == ("car", "train")
    shutil.rmtree(tmp_path / "car")
    (tmp_path / "train").rename(tmp_path / "inner")
    photo_folder(tmp_path / "train", {"x": 5, "y": 5})
    shutil.rmtree(tmp_path / "inner")
    assert open_to_learn(str(tmp_path)).classes == ("x", "y")


def test_splits_by_their_usual_names(tmp_path: Path) -> None:
    for names in (("Training", "Testing"), ("TRAIN", "Valid"), ("train", "eval")):
        for name in names:
            photo_folder(tmp_path / names[0] / name, {"ant": 3, "bee": 3})
        splits = open_to_learn(str(tmp_path / names[0]))
        assert splits.classes == ("ant", "bee")
        assert splits.whole is None


def test_what_lies_beside_splits_is_ignored_and_said(tmp_path: Path) -> None:
    for name in ("train", "test"):
        photo_folder(tmp_path / name, {"ant": 3, "bee": 3})
    photo_folder(tmp_path, {"unlabeled": 2})
    splits = open_to_learn(str(tmp_path))
    assert splits.classes == ("ant", "bee")
    assert f"ignored {tmp_path / 'unlabeled'}: neither a split nor a class" in splits.notes
    shutil.rmtree(tmp_path / "test")
    splits = open_to_learn(str(tmp_path))
    assert splits.classes == ("ant", "bee")
    assert splits.whole is not None


def test_the_advice_on_what_may_be_a_class_or_a_split_works(tmp_path: Path) -> None:
    photo_folder(tmp_path / "train", {"ant": 3, "bee": 3})
    photo_folder(tmp_path / "holiday", {"ant": 3, "bee": 3})
    (tmp_path / "holiday").rename(tmp_path / "test")  # as it says
    assert open_to_learn(str(tmp_path)).whole is None
    (tmp_path / "train").rename(tmp_path / "val")
    assert len(open_to_learn(str(tmp_path / "val")).classes) == 2


def test_what_macos_adds_and_hidden_files_are_ignored(tmp_path: Path) -> None:
    photo_folder(tmp_path, {"ant": 3, "bee": 3, "__MACOSX": 2})
    photo_folder(tmp_path / "ant", {"__MACOSX": 2, ".cache": 2})
    splits = open_to_learn(str(tmp_path))
    assert [len(part) for part in splits.parts.values()] == [4, 2]
    assert not [note for note in splits.notes if "MACOSX" in note]


@pytest.mark.skipif(".heic" in SUFFIXES, reason="pillow-heif is installed")
def test_files_that_cannot_be_read_are_counted_by_ending(tmp_path: Path) -> None:
    photo_folder(tmp_path, {"ant": 3, "bee": 3})
    for name in ("a.HEIC", "b.heic", "c.xyz", "noext", "notes.txt", ".DS_Store"):
        (tmp_path / "ant" / name).write_bytes(b"x")
    heic, others = [note for note in open_to_learn(str(tmp_path)).notes if "skipped" in note]
    assert heic == f'skipped 2 .heic files in {tmp_path}: pip install "vitlab[heif]" reads .heic'
    assert "skipped 2 files" in others
    assert "(1 with .xyz, 1 with no ending)" in others
    for image in tmp_path.rglob("*.png"):
        image.unlink()
    with pytest.raises(DataError, match=r"no class folders with images.*skipped 2 \.heic files"):
        open_to_learn(str(tmp_path))


def test_folders_inside_of_classes_are_told(tmp_path: Path) -> None:
    for group in ("one", "two"):
        photo_folder(tmp_path / group, {"a": 3, "b": 3})
    splits = open_to_learn(str(tmp_path))
    assert splits.classes == ("one", "two")
    assert any("2 of the 2 classes have their images in folders" in note for note in splits.notes)


def test_millions_of_names_are_listed_as_text_in_the_order_of_paths(tmp_path: Path) -> None:
    for place in ("a/b", "a-b", "a b", "a.b/c", "A", ".hidden", "a/__MACOSX"):
        for name in ("1.jpg", "2.PNG", "3.txt", "4.mp4", "n.", ".jpg", "..png"):
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
            (tmp_path / place / name).write_text("")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "A" / "1.jpg")
    (tmp_path / "folder.jpg").mkdir()
    images = [tmp_path / name for name in names_below(tmp_path)[0]]
    found = [each for each in tmp_path.rglob("*") if each.suffix.lower() in (".jpg", ".png")]
    expected = [each for each in found if each.is_file() and "/." not in str(each)]
    assert images == sorted(each for each in expected if "__MACOSX" not in each.parts)
    assert len(images) == 11
    assert names_below(tmp_path)[1] == {".mp4": 5, "no ending": 5}


def test_folders_that_a_pattern_leaves_open_are_classes(photos: Path) -> None:
    for pattern, classes in {
        "*/*.png": ("blue", "green", "red"), "{red,blue}/*.png": ("blue", "red"),
        "r[de]d/*.png": (), "red/*.png": (), "**/*.png": (),
    }.items():  # fmt: skip
        opened = open_images(f"{photos}/{pattern}", "optional")
        assert bool(opened.lacks) == (not classes)
        assert not classes or opened.every().classes == classes


@dataclass(frozen=True)
class Stripes:
    """A store of another kind: one file, and a line in `OPENERS`."""

    in_memory: ClassVar[bool] = True

    def __len__(self) -> int:
        return 20

    def image(self, index: int) -> PixelImage:
        pixels = np.full((8, 8, 1), 40 + 120 * (index % 2) + index, np.uint8)
        return PixelImage(pixels, self.name(index))

    def name(self, index: int) -> str:
        return f"stripe {index}"


def stripes() -> Images:
    return Images.of(Stripes(), SingleLabels(np.arange(20) % 2), ("dark", "light"))


def test_another_kind_of_source_is_a_class_and_a_line(monkeypatch, tmp_path) -> None:
    def open_stripes(request: Request) -> Found | None:
        return Found([Part(stripes())]) if request.data == "stripes" else None

    module = types.ModuleType("stripes")
    module.open_stripes = open_stripes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stripes", module)
    monkeypatch.setattr(door, "OPENERS", {"stripes": "stripes:open_stripes"} | door.OPENERS)
    splits = open_to_learn("stripes", options=Data(test_fraction=0.5))
    assert (splits.classes, len(splits.train), len(splits.test)) == (("dark", "light"), 10, 10)
    assert input_shape(splits.train) == (8, 1)
    assert choose_workers(splits.train, None) == 0
    result = copy({"train": stripes()}, tmp_path / "out", layout="tar", workers=0)
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
    assert np.array_equal(ours.target.values, theirs.target)
    np.testing.assert_array_equal(ours.store.images[..., 0], np.round(theirs.images * 255 / 16))
    assert ours.classes == tuple("0123456789")
    splits = open_to_learn("digits", options=Data(test_fraction=0.5))  # the split is fixed
    assert (len(splits.train), len(splits.test)) == (1438, 359)
    assert input_shape(splits.train) == (8, 1)
