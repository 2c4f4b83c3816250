"""Parquet files and data sets of the hub."""

import shutil
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from conftest import photo
from made_files import png
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn, split_opened
from vitlab.data.settings import Columns
from vitlab.data.sources.tables import quietly
from vitlab.data.summary import input_shape
from vitlab.errors import DataError


def parquet(folder: Path, **splits: int) -> Path:
    """Files in the Hugging Face layout: an image column of bytes and a ClassLabel column."""
    folder.mkdir()
    names = datasets.ClassLabel(names=["red", "green"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    for split, count in splits.items():
        rows = {"image": [photo(i, 16, 16, i % 2) for i in range(count)]}
        rows["label"] = [i % 2 for i in range(count)]
        file = folder / f"{split}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(rows, features=features).to_parquet(str(file))
    return folder


def test_parquet(tmp_path: Path, monkeypatch) -> None:
    folder = str(parquet(tmp_path / "pq", train=12, test=6))
    splits = open_to_learn(folder)
    assert splits.classes == ("red", "green")
    assert (len(splits.train), len(splits.test)) == (12, 6)
    assert splits.train.target.values.tolist() == [0, 1] * 6
    assert splits.test.image(3).content()[:4] == b"\x89PNG"
    assert splits.test.name(3).endswith("test row 3")
    assert input_shape(splits.train) == (16, 3)
    known = split_opened(open_images(folder, classes=("green", "red", "x")))
    assert known.test.target.values.tolist() == [1, 0] * 3
    with pytest.raises(ValueError, match="contains class 'green'"):
        split_opened(open_images(folder, classes=("red", "x")))
    shutil.copytree(folder, tmp_path / "downloaded" / "data")
    assert len(open_to_learn(str(tmp_path / "downloaded")).test) == 6
    file = str(next(Path(folder).glob("train*.parquet")))
    splits = open_to_learn(file)  # one file is split here
    assert (len(splits.train) + len(splits.test), len(splits.whole)) == (12, 12)
    loaded = datasets.load_dataset("parquet", data_files={"test": file})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: loaded)
    splits = open_to_learn("somebody/some-data")
    assert (len(splits.train) + len(splits.test), len(splits.whole)) == (12, 12)
    assert splits.train.name(0).startswith("somebody/some-data test row ")


def test_columns_of_tables(tmp_path: Path) -> None:
    """Found by their types and names, or chosen; also plain bytes, as other programs write them."""
    file, images = tmp_path / "a.parquet", [png(number) for number in range(8)]
    cells, words = [{"bytes": each, "path": None} for each in images], ["cat", "ape"] * 4
    pq.write_table(pa.table({"image": cells, "label": words}), file)
    splits = open_to_learn(str(file))
    assert splits.classes == ("ape", "cat")
    assert splits.whole.target.values.tolist() == [1, 0] * 4
    columns = {"scan": images, "fine_label": list("abcd") * 2, "label": list("xxxxyyyy"),
               "side": list("lrlrlrlr")}  # fmt: skip
    pq.write_table(pa.table(columns), file)
    found = open_to_learn(str(file))
    assert found.classes == ("x", "y")
    assert found.train.image(0).shape() == (16, 16, 3)
    assert "labels are in column label; --label-column fine_label takes others" in found.notes
    chosen = open_to_learn(str(file), options=Columns(path_column="scan", label_column=("side",)))
    assert chosen.classes == ("l", "r")
    assert not any("--label-column" in note for note in chosen.notes)


@pytest.mark.parametrize(
    ("error", "said"), [(OSError("gone\nfar"), "gone"), (KeyError(), "KeyError")]
)
def test_what_the_library_says_is_one_line(error: Exception, said: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(DataError, match=f"^cannot read a: {said}$"):
        quietly(fail, "cannot read a")


def test_names_on_the_hub() -> None:
    with pytest.raises(ValueError) as caught:  # without a network
        open_to_learn("somebody/some-data")
    assert "nor is it in the local cache: HF_HUB_OFFLINE is set" in str(caught.value)
    assert "\n" not in str(caught.value)
    Path("some").mkdir()  # every test has a folder of its own
    Path("some/file").write_text("x")
    with pytest.raises(ValueError, match=r"^some/file is not a folder, a Parquet file"):
        open_to_learn("some/file")


def test_text_of_any_type_is_a_path_of_a_table_in_memory(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.png") for number in range(4)]
    for path in paths:
        Path(path).write_bytes(png(8))
    for kind in (pa.string(), pa.large_string()):
        table = pa.table({"path": pa.array(paths, kind), "label": ["a", "b"] * 2})
        opened = open_images(datasets.Dataset(table))
        assert opened.every().classes == ("a", "b")
        assert len(opened.every()) == 4


def test_files_whose_names_are_no_split_are_named(tmp_path: Path) -> None:
    folder = parquet(tmp_path / "pq", train=4, extra=4)
    assert "also in extra-00000-of-00001.parquet" in open_images(str(folder)).notes[0]
    assert open_images(str(parquet(tmp_path / "other", one=4, two=4))).notes == []


def test_splits_without_training_images_are_named(tmp_path: Path) -> None:
    opened = open_images(str(parquet(tmp_path / "pq", validation=4, test=4)))
    assert "has test and validation, but no train" in opened.notes[0]
    trained = open_images(str(parquet(tmp_path / "other", trainval=4, test=4)))
    assert {name: len(own) for name, own in trained.parts.items()} == {"train": 4, "test": 4}
