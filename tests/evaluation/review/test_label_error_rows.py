"""Likely label errors as a table, from Python and the command line."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitlab
from conftest import call
from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.errors import OptionError
from vitlab.evaluation.label_errors import LEARNED, find_label_errors, write_suspects

CHANCES = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.2, 0.8], [0.6, 0.4]])
SINGLE = SingleLabels(np.array([0, 0, 0, 1, 1]))
SEVERAL = MultiLabels.of_table(np.eye(2, dtype=np.uint8)[SINGLE.values])


def write(file: Path, labels: Labels) -> dict[str, Any]:
    found = find_label_errors(CHANCES, labels)
    return write_suspects(file, found, found.rows(("a,b", "c"), "image {}".format))


def test_every_format_holds_the_same(tmp_path: Path) -> None:
    summary = write(tmp_path / "x.csv", SINGLE)
    assert summary == {"file": str(tmp_path / "x.csv"), "listed": 2, "expected": pytest.approx(2)}
    table = pd.read_csv(tmp_path / "x.csv")
    assert table.columns.tolist() == ["image", "label", "likely", "p_label", "p_likely", "margin"]
    assert table.values.tolist() == [
        ["image 2", "a,b", "c", 0.2, 0.8, pytest.approx(-0.6)],
        ["image 4", "c", "a,b", 0.4, 0.6, pytest.approx(-0.2)],
    ]
    for ending, read in ((".parquet", pd.read_parquet), (".jsonl", pd.read_json)):
        file = tmp_path / f"x{ending}"
        write(file, SINGLE)
        other = pd.read_json(file, lines=True) if ending == ".jsonl" else read(file)
        assert other.columns.tolist() == table.columns.tolist()
        assert other["image"].tolist() == table["image"].tolist()
        assert other["margin"].tolist() == pytest.approx(table["margin"].tolist(), abs=1e-6)
    write(tmp_path / "several.jsonl", SEVERAL)
    rows = [json.loads(line) for line in (tmp_path / "several.jsonl").read_text().splitlines()]
    assert [(row["image"], row["labels"], row["likely"]) for row in rows] == [
        ("image 2", ["a,b"], ["c"]), ("image 4", ["c"], ["a,b"]),
    ]  # fmt: skip
    assert set(rows[0]) == {"image", "labels", "likely", "margin", "p_label"}


def test_evaluate_writes_them(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = tmp_path / "doubts.csv", ("evaluate", str(digits_run), "digits", "--workers", "0")
    every = tmp_path / "all.csv"
    named = ("--out", str(every), "--label-errors", str(file))
    code, out, err = call(capsys, *words, *named, "--json")
    assert code == 0, err
    figures = json.loads(out)["label_errors"]
    with every.open(newline="") as stream:
        rows = {row["image"]: row for row in csv.DictReader(stream)}
    with file.open(newline="") as stream:
        listed = list(csv.DictReader(stream))
    assert (figures["file"], figures["listed"]) == (str(file), len(listed))
    assert len(listed) > 5  # of a model that has hardly learned
    for row in listed:
        whole = rows[row["image"]]
        assert row["label"] == whole["label"] != whole["predicted"]
        assert float(row["p_label"]) == pytest.approx(float(whole[f"p({row['label']})"]), rel=1e-5)
        assert float(row["p_likely"]) == pytest.approx(
            float(whole[f"p({row['likely']})"]), rel=1e-5
        )
        margin = float(row["p_label"]) - float(whole["confidence"])
        assert float(row["margin"]) == pytest.approx(margin, abs=1e-5)
    before = file.read_bytes()
    code, _, err = call(capsys, *words, "--label-errors", str(file))
    assert (code, file.read_bytes()) == (2, before)
    assert "already exists: pass --replace, or choose another --label-errors" in err
    code, out, err = call(
        capsys, *words, "--split", "train", "--label-errors", str(file), "--replace"
    )
    assert code == 0, err
    assert "labels are likely wrong:" in out
    assert LEARNED in err


def test_what_does_not_go_together(digits_run: Path, tmp_path: Path) -> None:
    model = vitlab.load(digits_run)
    with pytest.raises(OptionError, match="label_errors must end in"):
        vitlab.evaluate(model, "digits", label_errors=tmp_path / "x.txt")
    with pytest.raises(OptionError, match="out and label_errors must be different files"):
        vitlab.evaluate(model, "digits", out=tmp_path / "x.csv", label_errors=tmp_path / "x.csv")
    with pytest.raises(OptionError, match="label_errors applies only without protocol"):
        vitlab.evaluate(model, "x", protocol="imagenet", label_errors=tmp_path / "x.csv")
    assert list(tmp_path.iterdir()) == []
