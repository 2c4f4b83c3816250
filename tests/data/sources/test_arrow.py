"""Parquet files and data sets of the hub."""

from pathlib import Path

import pytest

from conftest import photo
from vitlab.data.learning import open_to_learn
from vitlab.data.open import open_images
from vitlab.data.settings import Columns
from vitlab.data.summary import input_shape
from vitlab.errors import DataError


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
    splits = open_to_learn(str(parquet(tmp_path / "pq", train=12, test=6)))
    assert splits.classes == ("red", "green")
    assert (len(splits.train), len(splits.test)) == (12, 6)
    assert splits.train.labels.values.tolist() == [0, 1] * 6
    assert splits.test.image(3).content()[:4] == b"\x89PNG"
    assert splits.test.name(3).endswith("test row 3")
    assert input_shape(splits.train) == (16, 3)


def test_one_parquet_file_is_split_here(tmp_path: Path) -> None:
    folder = parquet(tmp_path / "pq", data=20)
    file = next(folder.glob("*.parquet"))
    splits = open_to_learn(str(file))
    assert (len(splits.train) + len(splits.test), len(splits.whole)) == (20, 20)


def test_parquet_labels_map_to_known_classes_by_name(tmp_path: Path) -> None:
    folder = str(parquet(tmp_path / "pq", train=4, test=4))
    assert open_images(
        folder, classes=("green", "red", "x")
    ).splits().test.labels.values.tolist() == [
        1,
        0,
        1,
        0,
    ]
    with pytest.raises(ValueError, match="contains class 'green'"):
        open_images(folder, classes=("red", "x")).splits()


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
    splits = open_to_learn(str(tmp_path / "a.parquet"))
    assert splits.classes == ("ape", "cat")
    assert splits.whole is not None
    assert splits.whole.labels.values.tolist() == [1, 0] * 5
    pq.write_table(pa.table({"image": cells}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="has no label column; its columns are image"):
        open_to_learn(str(tmp_path / "b.parquet"))
    pq.write_table(pa.table({"label": words}), tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="has no image column; its columns are label"):
        open_to_learn(str(tmp_path / "c.parquet"))
    (tmp_path / "d.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match=r"cannot read .*d\.parquet"):
        open_to_learn(str(tmp_path / "d.parquet"))


def test_columns_of_tables_can_be_chosen(tmp_path: Path) -> None:
    """Also plain bytes, as other programs than `datasets` write images."""
    import io

    import pyarrow as pa
    from pyarrow import parquet as pq

    stream = io.BytesIO()
    photo(0).save(stream, "PNG")
    columns = {
        "scan": [stream.getvalue()] * 8,
        "fine_label": list("abcd") * 2,
        "label": list("xxxxyyyy"),
        "side": list("lrlrlrlr"),
    }
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), file)
    found = open_to_learn(str(file))
    assert found.classes == ("x", "y")
    assert found.train.image(0).shape() == (24, 32, 3)
    assert "labels are in column label; --label-column fine_label takes others" in found.notes
    chosen = open_to_learn(str(file), columns=Columns(path_column="scan", label_column=("side",)))
    assert chosen.classes == ("l", "r")
    assert not any("--label-column" in note for note in chosen.notes)
    for column, words in ((("sied",), "did you mean side"), (("side", "label"), "one --label-col")):
        with pytest.raises(DataError, match=words):
            open_to_learn(str(file), columns=Columns(label_column=column))
    pq.write_table(pa.table(columns | {"mask": columns["scan"]}), file)
    with pytest.raises(DataError, match="2 columns of bytes"):
        open_to_learn(str(file))


def test_a_hub_name_without_a_network_is_one_line() -> None:
    with pytest.raises(ValueError) as caught:  # the message is compared below
        open_to_learn("somebody/some-data")
    assert "nor could it be loaded as a data set of the Hugging Face Hub" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_data_set_of_one_split_is_split_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    file = next(parquet(tmp_path / "pq", test=20).glob("*.parquet"))
    loaded = datasets.load_dataset("parquet", data_files={"test": str(file)})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: loaded)
    splits = open_to_learn("somebody/some-data")
    assert (len(splits.train) + len(splits.test), len(splits.whole)) == (20, 20)
    assert splits.train.name(0).startswith("somebody/some-data test row ")


def test_a_file_is_never_taken_for_a_name_on_the_hub() -> None:
    Path("some").mkdir()  # every test has a folder of its own
    Path("some/file").write_text("x")
    with pytest.raises(ValueError, match=r"^some/file is not a folder, a Parquet file"):
        open_to_learn("some/file")
