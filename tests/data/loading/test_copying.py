"""A training-ready copy."""

import hashlib
import json
import pickle
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from conftest import call, photo, photo_folder
from made_files import encoded
from vitlab.data import prepare
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.open_splits import open_to_learn
from vitlab.data.prepare import copy, sources_to_copy
from vitlab.data.settings import Columns


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Two splits of two classes whose order is not the alphabet's once it is in Parquet."""
    for split, count in (("train", 7), ("val", 2), ("test", 3)):
        photo_folder(tmp_path / "in" / split, {"b": count, "a": count}, 60, 80)
    (tmp_path / "in" / "train" / "a" / "003.png").write_bytes(b"no image")
    return tmp_path / "in"


def digest(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_copy_has_no_groups_so_that_they_are_split_before(tmp_path: Path) -> None:
    photo_folder(tmp_path, {"a": 20, "b": 20})
    lines = [f"{c}/{n:03d}.png,{c},p{n // 2}" for c in "ab" for n in range(20)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,patient", *lines]))
    columns = Columns(label_column=("label",), group_column="patient")
    splits = open_to_learn(str(tmp_path / "list.csv"), options=columns)
    parts = sources_to_copy(str(tmp_path / "list.csv"), columns)
    assert {name: len(each) for name, each in parts.items()} == {
        "train": len(splits.train), "test": len(splits.test),
    }  # fmt: skip
    assert {*sources_to_copy(str(tmp_path / "list.csv"), replace(columns, group_column=""))} == {
        "train"
    }


@pytest.mark.parametrize("layout", ["parquet", "tar"])
def test_the_copy_has_the_same_images_in_order(large, tmp_path, layout, monkeypatch) -> None:
    monkeypatch.setattr(prepare, "BYTES", 4000)  # several files
    monkeypatch.setattr(prepare, "ROWS", 2)
    sources, out = sources_to_copy(str(large)), tmp_path / "out"
    result = copy(sources, out, side=30, layout=layout, workers=0)
    assert (result["images"], result["damaged"], result["out"]) == (23, 1, str(tmp_path / "out"))
    bad = [json.loads(line) for line in (tmp_path / "out" / "bad.jsonl").read_text().splitlines()]
    assert bad == [{"split": "train", "index": 3, "error": bad[0]["error"]}]
    assert "a/003.png: not a JPEG" in bad[0]["error"]
    before, after = open_to_learn(str(large)), open_to_learn(str(tmp_path / "out"))
    assert after.classes == before.classes
    assert after.whole is None
    good = [i for i in range(14) if i != 3]
    assert after.train.target.values.tolist() == before.train.target.values[good].tolist()
    assert len(list((tmp_path / "out").glob(f"train-*.{layout}"))) > 1
    pairs = (before.train.take(np.array(good)), after.train), (before.test, after.test)
    for old, new in pairs:
        new = pickle.loads(pickle.dumps(new))  # as a worker gets it
        for i in range(len(old)):
            theirs = Image.fromarray(old.image(i).decode(3)).resize((40, 30), 3)  # bicubic
            apart = new.image(i).decode(3).astype(int) - np.asarray(theirs)
            assert np.abs(apart).mean() < 3  # JPEG
    if layout == "parquet":
        loaded = datasets.load_dataset(str(out))  # Hugging Face reads it
        assert {split: len(rows) for split, rows in loaded.items()} == {
            "train": 13, "validation": 4, "test": 6,
        }  # fmt: skip
        assert loaded["train"].features["label"].names == ["a", "b"]
        assert loaded["test"][0]["image"].size == (40, 30)


@pytest.mark.workers
def test_the_bytes_do_not_depend_on_the_workers(large: Path, tmp_path: Path) -> None:
    for workers in (0, 2):
        out, sources = tmp_path / str(workers), sources_to_copy(str(large))
        copy(sources, out, side=30, layout="tar", workers=workers)
    assert digest(tmp_path / "0") == digest(tmp_path / "2")


@pytest.mark.parametrize("layout", ["parquet", "tar"])
def test_several_labels_and_unsplit_data(tmp_path: Path, layout: str) -> None:
    photo_folder(tmp_path, {"x": 10})
    rows = [{"path": f"x/{i:03d}.png", "labels": [["p", "q"], [], ["r"]][i % 3]} for i in range(10)]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, rows)))
    before = open_to_learn(str(tmp_path / "l.jsonl"))
    copy(sources_to_copy(str(tmp_path / "l.jsonl")), tmp_path / "out", layout=layout, workers=0)
    after = open_to_learn(str(tmp_path / "out"))
    assert after.classes == ("p", "q", "r")
    assert after.whole.target.values.tolist() == before.whole.target.values.tolist()
    assert after.test.target.values.tolist() == before.test.target.values.tolist()
    # small enough: copied byte for byte
    assert after.whole.image(4).content() == before.whole.image(4).content()


def test_what_becomes_of_one_image() -> None:
    gray = encoded(photo(1, 90, 60).convert("L"), "JPEG")
    data, suffix = EncodedImage(gray, "x").compact(30, 90)
    image = Image.open(BytesIO(data))
    assert (image.mode, image.size, image.format, suffix) == ("L", (30, 45), "JPEG", "jpg")
    assert EncodedImage(gray, "x").compact(60, 90) == (gray, "jpg")
    exif = Image.Exif()
    exif[274] = 6
    turned = encoded(photo(1, 60, 90), "JPEG", exif=exif.tobytes())
    assert Image.open(BytesIO(EncodedImage(turned, "x").compact(30, 90)[0])).size == (30, 45)
    bmp = encoded(photo(1, 20, 20), "BMP")
    assert EncodedImage(bmp, "x").compact(30, 90)[1] == "jpg"
    clear = encoded(Image.new("RGBA", (50, 50), (0, 0, 0, 0)), "PNG")
    assert (EncodedImage(EncodedImage(clear, "x").compact(25, 95)[0]).decode(3) > 250).all()
    with pytest.raises(ValueError, match=r"^x: damaged"):
        EncodedImage(gray[: len(gray) // 2], "x").compact(60, 90)


def test_nothing_is_left_half_written(large: Path, tmp_path: Path) -> None:
    for file in (large / "test").rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="no image of the test split can be used"):
        copy(sources_to_copy(str(large)), tmp_path / "out", workers=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    with pytest.raises(ValueError, match="full already exists: choose a new folder"):
        copy(sources_to_copy("digits"), tmp_path / "full")


def test_the_command(tmp_path: Path, capsys, large: Path) -> None:
    words = ["prepare", str(large), str(tmp_path / "out"), "--side", "32", "--json"]
    (large / "none").mkdir()
    status, out, err = call(capsys, *words, "--format", "tar", "--workers", "0")
    assert status == 0
    assert json.loads(out)["images"] == 23
    assert err.count("skipped: ") == 1
    assert f"ignored {large / 'none'}: neither a split nor a class\n" in err
    sources_to_copy(str(large / "train"))
    assert not capsys.readouterr().err  # nothing is held out of a copy
    status, _, err = call(capsys, *words)
    assert status == 2
    assert "already exists" in err
