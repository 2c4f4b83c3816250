"""What DATA can be, and what is said where it cannot."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from conftest import photo, photo_folder
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.shape import input_shape
from vitlab.data.sources.arrays import Arrays, digits
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.source import counts
from vitlab.data.sources.splits import fingerprint, hold_out


def test_digits_are_those_of_scikit_learn() -> None:
    theirs, ours = load_digits(), digits()
    assert np.array_equal(ours.labels.values, theirs.target)
    np.testing.assert_array_equal(ours.images[..., 0], np.round(theirs.images * 255 / 16))
    assert ours.classes == tuple("0123456789")
    splits = open_data("digits", test_fraction=0.5)  # the split is fixed
    assert (len(splits.train), len(splits.test)) == (1438, 359)
    assert input_shape(splits.train) == (8, 1)


def test_held_out_is_stratified_fixed_and_apart() -> None:
    labels = SingleLabels(np.repeat([0, 1, 2], [100, 10, 1]))
    source = Arrays(np.zeros((111, 2, 2, 1), np.uint8), labels, ("a", "b", "c"))
    splits = hold_out(source, 0.2)
    assert sorted([*splits.train.indices, *splits.test.indices]) == list(range(111))
    assert splits.test.labels.counts(3) == [20, 2, 0]
    assert np.array_equal(splits.test.indices, hold_out(source, 0.2).test.indices)
    assert any("'c' has only one image" in note for note in splits.notes)


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
    assert len([n for n in splits.notes if "has no images of class" in n]) == 2
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


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p / "nowhere", "no such file or folder"),
        (lambda p: p, "is empty: put the images of each class into a folder of its name"),
        (
            lambda p: photo_folder(p, {"only": 5}),
            "has only one class ('only'); at least 2 are needed",
        ),
        (lambda p: photo_folder(p, {"a": 1, "b": 1}), "has too few images to hold some out"),
        (lambda p: photo(0).save(p / "a.png") or p, "has no class folders with images (its images"),
        (
            lambda p: (p / "x.txt").write_text("x") and p / "x.txt",
            "is not a folder, a Parquet file",
        ),
    ],
)
def test_bad_data_in_one_line(tmp_path: Path, make: object, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # the message is compared below
        open_data(str(make(tmp_path)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def parquet(folder: Path, **splits: int) -> Path:
    """Files in the Hugging Face layout: an image column of bytes and a ClassLabel column."""
    import datasets

    folder.mkdir()
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["red", "green"])}
    )
    for split, count in splits.items():
        rows = {"image": [photo(i, 16, 16, i % 2) for i in range(count)]}
        rows["label"] = [i % 2 for i in range(count)]
        file = folder / f"{split}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(rows, features=features).to_parquet(str(file))
    return folder


def test_parquet(tmp_path: Path) -> None:
    splits = open_data(str(parquet(tmp_path / "pq", train=12, test=6)))
    assert splits.classes == ("red", "green")
    assert (len(splits.train), len(splits.test)) == (12, 6)
    assert splits.train.labels.values.tolist() == [0, 1] * 6
    assert splits.test.image(3).content()[:4] == b"\x89PNG"
    assert splits.test.name(3).endswith("test row 3")
    assert input_shape(splits.train) == (16, 3)


def test_one_parquet_file_is_split_here(tmp_path: Path) -> None:
    folder = parquet(tmp_path / "pq", data=20)
    file = next(folder.glob("*.parquet"))
    splits = open_data(str(file))
    assert (len(splits.train), len(splits.test)) == (16, 4)


def test_parquet_labels_map_to_known_classes_by_name(tmp_path: Path) -> None:
    folder = str(parquet(tmp_path / "pq", train=4, test=4))
    assert open_data(folder, classes=("green", "red", "x")).test.labels.values.tolist() == [
        1,
        0,
        1,
        0,
    ]
    with pytest.raises(ValueError, match="contains class 'green'"):
        open_data(folder, classes=("red", "x"))


def test_plain_columns_serve_too_and_unlabeled_ones_are_refused(tmp_path: Path) -> None:
    import io

    import pyarrow as pa
    from pyarrow import parquet as pq

    def png(i: int) -> bytes:
        stream = io.BytesIO()
        photo(i).save(stream, "PNG")
        return stream.getvalue()

    cells = [{"bytes": png(i), "path": None} for i in range(10)]
    words = ["cat", "ape"] * 5
    pq.write_table(pa.table({"image": cells, "label": words}), tmp_path / "a.parquet")
    splits = open_data(str(tmp_path / "a.parquet"))
    assert splits.classes == ("ape", "cat")
    assert splits.whole is not None
    assert splits.whole.labels.values.tolist() == [1, 0] * 5
    pq.write_table(pa.table({"image": cells}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="has no label column; its columns are image"):
        open_data(str(tmp_path / "b.parquet"))
    pq.write_table(pa.table({"label": words}), tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="has no image column; its columns are label"):
        open_data(str(tmp_path / "c.parquet"))
    (tmp_path / "d.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match=r"cannot read .*d\.parquet"):
        open_data(str(tmp_path / "d.parquet"))


def test_a_hub_name_without_a_network_is_one_line() -> None:
    with pytest.raises(ValueError) as caught:  # the message is compared below
        open_data("somebody/some-data")
    assert "nor could it be loaded as a data set of the Hugging Face Hub" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_and_channels_come_from_the_images(tmp_path: Path) -> None:
    mixed = photo_folder(tmp_path / "mixed", {"a": 3, "b": 3})
    photo(0, 40, 40).save(mixed / "a" / "000.png")
    assert input_shape(open_data(str(mixed)).train)[0] == 224
    gray = tmp_path / "gray"
    for name in "ab":
        (gray / name).mkdir(parents=True)
        for i in range(3):
            photo(i, 20, 20).convert("L").save(gray / name / f"{i}.png")
    assert input_shape(open_data(str(gray)).train) == (20, 1)
    large = tmp_path / "large"
    for name in "ab":
        (large / name).mkdir(parents=True)
        for i in range(3):
            photo(i, 300, 400).save(large / name / f"{i}.jpg")
    assert input_shape(open_data(str(large)).train) == (224, 3)


def test_the_fingerprint_knows_the_data_wherever_it_lies(photos: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(photos, tmp_path / "moved")
    whole = open_data(str(photos)).whole
    assert whole is not None
    assert fingerprint(whole) == fingerprint(open_data(str(moved)).whole)
    (moved / "red" / "007.png").unlink()
    assert fingerprint(whole) != fingerprint(open_data(str(moved)).whole)
