"""A row per image in CSV and Parquet: every image once, with odd names, or not at all."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

import vitlab
from conftest import call, photo, photo_folder
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DiskError, OptionError
from vitlab.evaluation import infer
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.records import unicode
from vitlab.places import check_file

CLASSES = ("blue", 'gr"een', "red, or so")
NAME = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
ODD = ('a,b"c.png', "line\nbreak.png", "ünï 日本.png", "=1+1.png", " space.png ")


@pytest.fixture
def model() -> vitlab.VisionTransformer:
    made = vitlab.create(NAME, classes=3, image_size=16, labels=CLASSES)
    assert isinstance(made, vitlab.VisionTransformer)
    return made.eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders with odd names, and a damaged image among them."""
    root = photo_folder(tmp_path / "photos", dict.fromkeys(CLASSES, 5), 16, 16)
    for number, name in enumerate(ODD):
        photo(number, 16, 16).save(root / CLASSES[1] / "x.png")
        (root / CLASSES[1] / "x.png").rename(root / CLASSES[1] / name.strip())
    (root / CLASSES[1] / "003.png").write_bytes(b"no image")
    return root


def read(file: Path) -> pd.DataFrame:
    if file.suffix == ".parquet":
        return pd.read_parquet(file)
    if file.suffix == ".jsonl":
        return pd.read_json(file, lines=True, dtype=False)
    return pd.read_csv(file, keep_default_na=True)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_an_evaluation_image_by_image(
    model: vitlab.VisionTransformer, folder: Path, tmp_path: Path, ending: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(infer, "BATCH", 7)
    monkeypatch.setattr("vitlab.evaluation.rows.GROUP", 10)
    file = tmp_path / f"rows.{ending}"
    result = vitlab.evaluate(model, str(folder), split="all", workers=0, out=file)
    rows, source = read(file), open_to_learn(str(folder)).whole
    assert result["file"] == str(file)
    assert source is not None
    assert list(rows) == [
        "image", "label", "predicted", "confidence", "error", *(f"p({name})" for name in CLASSES),
    ]  # fmt: skip
    assert list(rows["image"]) == [source.name(index) for index in range(len(source))]
    bad = rows["error"].notna()
    assert list(rows["image"][bad]) == [str(folder / CLASSES[1] / "003.png")]
    assert rows["error"][bad].item() == result["notes"][0]
    assert rows[bad].drop(columns=["image", "label", "error"]).isna().all(axis=None)
    good = rows[~bad]
    assert (good["label"] == good["predicted"]).mean() == pytest.approx(result["accuracy"])
    chances = good[[f"p({name})" for name in CLASSES]].to_numpy()
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-6)
    assert [CLASSES[best] for best in chances.argmax(1)] == list(good["predicted"])
    np.testing.assert_allclose(good["confidence"], chances.max(1), atol=1e-6)
    if ending == "parquet":
        assert parquet.ParquetFile(file).num_row_groups == 2
    elif ending == "csv":
        again = open_to_learn(str(file))  # the file is a list of images itself
        assert again.classes == tuple(sorted(CLASSES))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_of_many_classes_the_likeliest(tmp_path: Path, ending: str) -> None:
    photo_folder(tmp_path / "photos", {"7": 3, "100": 3}, 16, 16)
    names = tuple(str(number) for number in range(101))
    made = vitlab.create(NAME, classes=101, image_size=16, labels=names)
    vitlab.save(made, tmp_path / "model")
    file = tmp_path / f"rows.{ending}"
    vitlab.evaluate(made, str(tmp_path / "photos"), split="all", workers=0, out=file)
    rows = read(file)
    best = [f"{what}_{place}" for place in range(1, 6) for what in ("class", "p")]
    assert list(rows) == ["image", "label", "predicted", "confidence", "error", *best]
    answers = vitlab.classify(made, [str(tmp_path / "photos" / "100")])
    for answer, (_, row) in zip(answers, rows.iterrows(), strict=False):
        for place, (name, chance) in enumerate(answer.classes):
            assert str(row[f"class_{place + 1}"]) == name
            assert row[f"p_{place + 1}"] == pytest.approx(chance, rel=1e-5)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_several_labels(tmp_path: Path, ending: str) -> None:
    photo_folder(tmp_path, {"a": 4}, 16, 16)
    lines = ["path,labels", "a/000.png,x|y", "a/001.png,y", "a/002.png,", "a/003.png,x"]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    made = vitlab.create(NAME, classes=2, image_size=16, labels=("x", "y"))
    made.head.classify.bias.data[:] = 5.0  # both classes, always
    made.head.classify.bias.data[1] = -5.0
    file = tmp_path / f"rows.{ending}"
    vitlab.evaluate(made.eval(), str(tmp_path / "list.csv"), split="all", out=file, workers=0)
    if ending == "parquet":
        rows = parquet.read_table(file).to_pydict()
        assert rows["labels"] == [["x", "y"], ["y"], [], ["x"]]
        assert rows["predicted"] == [["x"]] * 4
    elif ending == "jsonl":
        lines = list(map(json.loads, file.read_text().splitlines()))
        assert [row["labels"] for row in lines] == [["x", "y"], ["y"], [], ["x"]]
        assert lines[0]["error"] is None
    else:
        table = list(csv.DictReader(file.read_text().splitlines()))
        assert [row["labels"] for row in table] == ["x|y", "y", "", "x"]
        assert [row["predicted"] for row in table] == ["x"] * 4
        assert float(table[0]["confidence"]) == float(table[0]["p(x)"]) > 0.9


def test_bytes_that_are_no_text_survive(model: vitlab.VisionTransformer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    odd = os.fsencode(tmp_path / "in") + b"/caf\xe9.png"
    photo(0, 16, 16).save(tmp_path / "x.png")
    os.rename(tmp_path / "x.png", odd)  # noqa: PTH104
    vitlab.save(model, tmp_path / "model")
    words = ["predict", str(tmp_path / "model"), str(tmp_path / "in"), "--out"]
    from vitlab.cli import main

    for name in ("rows.csv", "rows.jsonl", "rows.parquet"):
        with pytest.raises(SystemExit) as stop:
            main([*words, str(tmp_path / name)])
        assert not stop.value.code
    assert odd in (tmp_path / "rows.csv").read_bytes()
    (line,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert os.fsencode(line["image"]) == odd
    spelled = parquet.read_table(tmp_path / "rows.parquet")["image"].to_pylist()
    assert spelled == [str(tmp_path / "in") + "/caf\\udce9.png"]


def test_predictions_go_into_a_file(
    capsys: pytest.CaptureFixture[str], model: vitlab.VisionTransformer, folder: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    vitlab.save(model, tmp_path / "model")
    file = tmp_path / "rows.csv"
    words = ["predict", str(tmp_path / "model"), str(folder), "--out", str(file)]
    code, out, err = call(capsys, *words)
    assert code == 0
    assert out == f"{file}: 19 images, 1 damaged\n"
    assert "003.png: not a JPEG" in err
    rows = read(file)
    assert "label" not in rows
    answers = vitlab.classify(model, [str(folder)])
    assert list(rows["image"]) == [answer.image for answer in answers]
    predicted = [answer.classes[0][0] if answer.classes else "" for answer in answers]
    assert list(rows["predicted"].fillna("")) == predicted
    before = file.read_bytes()
    code, _, err = call(capsys, *words)
    assert code == 2
    assert err == (
        f"vitlab predict: {file} already exists: pass --replace, or choose another --out\n"
    )
    assert file.read_bytes() == before
    assert call(capsys, *words, "--replace")[0] == 0
    assert {each.name for each in tmp_path.iterdir()} == {"model", "photos", "rows.csv"}


def test_nothing_is_left_of_a_failed_file(
    model: vitlab.VisionTransformer, folder: Path, tmp_path: Path
) -> None:
    for ending in ("csv", "parquet"):
        file = tmp_path / f"rows.{ending}"
        file.write_text("older")
        handle = model.head.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            vitlab.evaluate(model, str(folder), workers=0, out=file, replace=True)
        handle.remove()
        assert file.read_text() == "older"
        assert not list(tmp_path.glob(".*"))


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"out must end in \.csv, \.jsonl or \.parquet, not 'rows\.json'"
    ):
        check_file(tmp_path / "rows.json", replace=False)
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(DiskError, match="it is a folder"):
        check_file(tmp_path / "x.csv", replace=True)
    assert check_file(tmp_path / "Y.CSV", replace=False) == tmp_path / "Y.CSV"


def test_classes_of_the_same_name_keep_their_columns(tmp_path: Path) -> None:
    made = vitlab.create(NAME, classes=3, image_size=16, labels=("crane", "heron", "crane"))
    vitlab.save(made, tmp_path / "model")
    photo(0, 16, 16).save(tmp_path / "x.png")
    from vitlab.evaluation.classification import classify_into, unlabeled

    images = unlabeled(made, [str(tmp_path / "x.png")])
    classify_into(tmp_path / "rows.parquet", made.eval(), images, Compute("cpu"))
    names = parquet.read_schema(tmp_path / "rows.parquet").names
    assert names[-3:] == ["p(0: crane)", "p(1: heron)", "p(2: crane)"]


def test_bytes_that_are_not_text_are_spelled_out_in_lists_too() -> None:
    assert unicode(["caf\udce9", 3]) == ["caf\\udce9", 3]
