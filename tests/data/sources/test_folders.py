"""Class folders."""

import shutil
from pathlib import Path

import pytest

from conftest import photo_folder
from vitlab.data.loading.shape import input_shape
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.protocol import counts


def test_class_folders(photos: Path) -> None:
    (photos / "notes.txt").write_text("not an image")
    (photos / ".hidden").mkdir()
    (photos / "empty").mkdir()
    splits = open_data(str(photos))
    assert splits.classes == ("blue", "green", "red")
    assert counts(splits.train) == {"blue": 16, "green": 16, "red": 16}
    assert counts(splits.test) == {"blue": 4, "green": 4, "red": 4}
    assert any("empty: no images" in note for note in splits.notes)
    index = splits.test.labels.values.tolist().index(1)
    assert "/green/" in splits.test.name(index)
    assert splits.test.image(index).content()[:4] == b"\x89PNG"
    assert input_shape(splits.train) == ((24, 32), 3)


def test_labels_follow_the_training_folder_by_name(tmp_path: Path) -> None:
    """A class missing from val/ must not renumber the others."""
    photo_folder(tmp_path / "train", {"ant": 3, "bee": 3, "cow": 3})
    photo_folder(tmp_path / "val", {"cow": 2})
    splits = open_data(str(tmp_path))
    assert splits.test.labels.values.tolist() == [2, 2]
    assert splits.whole is None
    assert splits.validation is None  # the only other split is what is reported on
    photo_folder(tmp_path / "test", {"ant": 1, "bee": 1})
    splits = open_data(str(tmp_path))
    assert splits.validation is not None
    assert (splits.validation.labels.values.tolist(), splits.test.labels.values.tolist()) == (
        [2, 2],
        [0, 1],
    )
    photo_folder(tmp_path / "test", {"dog": 1})
    with pytest.raises(ValueError, match="contains class 'dog', which is not in the training data"):
        open_data(str(tmp_path))


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    photo_folder(tmp_path, {"car": 5, "train": 5})
    assert open_data(str(tmp_path)).classes == ("car", "train")
    shutil.rmtree(tmp_path / "car")
    (tmp_path / "train").rename(tmp_path / "inner")
    photo_folder(tmp_path / "train", {"x": 5, "y": 5})
    shutil.rmtree(tmp_path / "inner")
    assert open_data(str(tmp_path)).classes == ("x", "y")
