"""The rules of data, alone: what a cell, a label, a split and a path mean."""

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from vitlab.data.cells import ColumnFacts, is_missing, plain_value
from vitlab.data.class_names import look_alike_notes, merge_names, spell_name
from vitlab.data.folder_names import is_system_name
from vitlab.data.label_cells import (
    LabelColumn,
    join_labels,
    read_label,
    read_label_column,
    split_labels,
)
from vitlab.data.path_cells import path_in, path_spellings
from vitlab.data.split_cells import find_split_column
from vitlab.errors import DataError


def facts(column: str = "label", **more: Any) -> ColumnFacts:
    return ColumnFacts("list", column, lambda row: f"line {row}", **more)


@pytest.mark.parametrize("name", [
    ".hidden", "._a.jpg", "__MACOSX", "@eaDir", "@EADIR", "#recycle", "$RECYCLE.BIN", "Thumbs.db",
    "desktop.ini", "SYNOPHOTO_THUMB_XL.jpg", "System Volume Information", "lost+found",
    "__pycache__", "~$list.xlsx", ".ipynb_checkpoints", "@Recycle",
])  # fmt: skip
def test_names_of_systems(name: str) -> None:
    assert is_system_name(name)


@pytest.mark.parametrize("name", ["cat", "recycle", "thumbs", "@home", "a.b", "_x", "#1", "$5"])
def test_names_of_users(name: str) -> None:
    assert not is_system_name(name)


EMPTY = [
    None, math.nan, np.nan, np.float32("nan"), pd.NA, pd.NaT, "", "  ", "nan", "NaN", "<NA>",
    "#N/A", "NULL", torch.tensor(math.nan), pa.scalar(None),
]  # fmt: skip


@pytest.mark.parametrize("cell", EMPTY)
def test_cells_that_are_empty(cell: object) -> None:
    assert is_missing(plain_value(cell))
    assert read_label_column([cell, "a"], facts()).is_missing.tolist() == [True, False]


LABELS: list[tuple[object, object]] = [
    ("cat", "cat"), (" cat\t", "cat"), (7, "7"), (-1, "-1"), (True, "True"), (2.0, "2"),
    (np.int8(3), "3"), (np.str_("x"), "x"), (np.bool_(False), "False"), (np.float64(4), "4"),
    (torch.tensor(5), "5"), (np.array(6), "6"), (pa.scalar("w"), "w"), (pa.scalar(9), "9"),
    (["b", 1], ("b", "1")), (("b",), ("b",)), ({"z", "y"}, ("y", "z")), ([], ()),
    (np.array(["a", "b"]), ("a", "b")), (torch.tensor([1, 2]), ("1", "2")), (["a", "a"], ("a",)),
    ("Cafe\u0301", "Caf\u00e9"), ("a\u200bb", "ab"), ("None", "None"), ("a|b", "a|b"),
    (Path("x"), "x"),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "label"), LABELS)
def test_labels_in_cells(cell: object, label: object) -> None:
    assert read_label(plain_value(cell)) == label


@pytest.mark.parametrize("cell", [
    0.5, math.inf, b"a", {"a": 1}, datetime.date(2026, 1, 1), decimal.Decimal(1), ["a", None],
    ["a", 0.5], [["a"]], ["a", ""], object(), 1j,
])  # fmt: skip
def test_cells_that_are_no_labels(cell: object) -> None:
    with pytest.raises(DataError, match=r"^list line 1 has (no|an empty) label"):
        read_label_column(["a", cell], facts())


@pytest.mark.parametrize("names", [
    [], ["a"], ["a", "b"], ["a|b"], ["a|b", "c"], ["|", "||"], ["a b", "c,d"],
])  # fmt: skip
def test_several_labels_are_read_as_they_were_written(names: list[str]) -> None:
    assert list(split_labels(join_labels(names), "|")) == names


def labels_of(column: LabelColumn) -> list[object]:
    return [column.distinct[code] for code in column.codes.tolist()]


@pytest.mark.parametrize(("cells", "options", "labels", "says"), [
    (["a|b", "c"], {"is_csv": True}, ["a|b", "c"], "--label-separator '|'"),
    (["a|b", "c"], {}, ["a|b", "c"], "--label-separator '|'"),
    (["a|b", "c"], {"separator": "|"}, [("a", "b"), ("c",)], ""),
    (["a;b", "c"], {"separator": ";"}, [("a", "b"), ("c",)], ""),
    (["0 3", "1"], {}, [("0", "3"), ("1",)], "several numbers in a cell"),
    (["1.0", "2.0"], {"is_csv": True}, ["1", "2"], ""),
    (["1.0", "2.5"], {"is_csv": True}, ["1.0", "2.5"], ""),
    (["v1.0", "v2.0"], {"is_csv": True}, ["v1.0", "v2.0"], ""),
    ([0, -1], {"classes": ("x", "y")}, ["0", None], ""),
    (["0", "-1"], {"classes": ("x", "y")}, ["0", None], ""),
    ([0, -1], {}, ["0", "-1"], "1 images have the class '-1'"),
    (["None", "a"], {}, ["None", "a"], "if that means no label, leave the cell empty"),
    (["a b", "a c", "b c", "a", "b", "c"], {}, ["a b", "a c", "b c", "a", "b", "c"],
     "3 words make 6 labels, a class each; --label-separator ' '"),
    (["golden retriever", "black labrador"], {}, ["golden retriever", "black labrador"], ""),
    ([["a"], "b"], {}, [("a",), ("b",)], ""),
    (["['a', 'b']", '["a"]', "[]"], {"is_csv": True}, [("a", "b"), ("a",), ()], "lists as text"),
    (["['a' 'b']", "[3]", ""], {"is_csv": True}, [("a", "b"), ("3",), None], "lists as text"),
    (["['a']", "b"], {"is_csv": True}, ["['a']", "b"], ""),
    (["[a]", "[b]"], {"is_csv": True}, ["[a]", "[b]"], ""),
    (["['a']"], {}, ["['a']"], ""),
])  # fmt: skip
def test_a_column_of_labels(
    cells: list[Any], options: dict[str, Any], labels: list[Any], says: str
) -> None:
    column = read_label_column(cells, facts(**options))
    assert labels_of(column) == labels
    assert any(says in note for note in column.notes) if says else column.notes == []


@pytest.mark.parametrize("cells", [
    [[0, 1], [1, 0]], [[1.0, 0.0, 1.0], None], [np.eye(2)[0], np.eye(2)[1]], [(True, False)],
    [torch.tensor([0, 1, 1])],
])  # fmt: skip
def test_vectors_of_0_and_1_are_no_classes(cells: list[Any]) -> None:
    with pytest.raises(DataError, match=r"^column label of list holds \d numbers of 0 and 1"):
        read_label_column(cells, facts())


@pytest.mark.parametrize("cells", [[[0], [1]], [[0, 1], [1]], [[0, 2], [1, 0]], [["0", "1"]]])
def test_lists_of_numbers_are_classes(cells: list[Any]) -> None:
    expected = [tuple(map(str, cell)) for cell in cells]
    assert labels_of(read_label_column(cells, facts())) == expected


@pytest.mark.parametrize("name", ["labels", "Tags", " classes ", "targets", "categories"])
def test_columns_of_several_labels_in_csv(name: str) -> None:
    column = read_label_column(["a|b", "", "c", r"d\|e"], facts(name, is_csv=True))
    assert labels_of(column) == [("a", "b"), (), ("c",), ("d|e",)]


SPLITS: list[tuple[dict[str, list[Any]], list[str], str]] = [
    ({"split": ["train", "VAL", "Test"]}, ["train", "validation", "test"], ""),
    ({"split": ["train", None, "test"]}, ["train", "train", "test"], "1 of 3 rows"),
    ({"split": ["train", math.nan, "test"]}, ["train", "train", "test"], "1 of 3 rows"),
    ({"Subset": ["dev", "training", "eval"]}, ["validation", "train", "validation"], ""),
    ({"fold": [0, 1, 2]}, ["test", "train", "train"], "0 is the test split"),
    ({"fold": ["10", "9", "9"]}, ["train", "test", "test"], "9 is the test split"),
    ({"fold": ["train", "valid", "train"]}, ["train", "validation", "train"], "column fold"),
    ({"fold": [1, 1, 1]}, [], ""),
    ({"kfold": [1.0, 2.0, None]}, ["test", "train", "train"], "1.0 is the test split"),
    ({"is_valid": [True, False, False]}, ["validation", "train", "train"], "is_valid"),
    ({"is_test": [0, 1, 0]}, ["train", "test", "train"], "what is true is the test split"),
    ({"is_train": ["True", "False", "True"]}, ["train", "test", "train"], "is_train"),
    ({"used for": ["train", "test", "train"]}, ["train", "test", "train"], "names the splits"),
    ({"used for": ["train", "train", "train"]}, [], ""),
    ({"set": ["A", "B", "A"]}, [], "names no splits (a): ignored"),
    ({"is_valid": [1, 0, 0], "is_test": [0, 1, 0]}, ["validation", "test", "train"], "is_test"),
    ({"is_train": [1, 0, 0], "is_test": [0, 1, 0]}, ["train", "test", "validation"], "is_train"),
    ({"is_train": [1, 0, 0], "is_val": [0, 1, 0]}, ["train", "validation", "test"], "is_val"),
    ({"label": ["a", "b", "c"], "train": [1, 0, 0], "val": [0, 1, 0], "test": [0, 0, 1]},
     ["train", "validation", "test"], "column val of list: what is true"),
    ({"train": [1, 0, 0], "test": [0, 0, 1]}, [], ""),
    ({"label": ["a", "b", "c"], "valid": [1, 0, 1]}, [], ""),
    ({"Is Valid": ["y", "n", "n"]}, ["validation", "train", "train"], "Is Valid"),
    ({"isTest": ["T", "F", None]}, ["test", "train", "train"], "1 of 3 rows"),
    ({"is_valid": ["later", "n", "n"]}, [], "names no splits (later): ignored"),
    ({"fold": ["1", "2", "test"]}, ["train", "train", "test"], "test are splits"),
    ({"used": ["trainval", "test", "trainval"]}, [], "names no splits (trainval): ignored"),
    ({"split": ["val", "test", "val"]}, ["validation", "test", "validation"], "no train: not used"),
    ({"used": ["train", "holdout", "train"]}, [], "names no splits (holdout): ignored"),
    ({"used": ["train", "extra", "test"]}, [], "names no splits (extra): ignored"),
    ({"used": ["train_set", "test_set", ""]}, [], "names no splits (train_set): ignored"),
    ({"used": ["Training", "PublicTest", "PrivateTest"]}, [], "(publictest): ignored"),
    ({"object": ["train", "bus", "train"]}, [], ""),
    ({"object": ["extra", "extra", "extra"]}, [], ""),
    ({"partition": [0, 1, 2]}, [], "names no splits (0): ignored"),
    ({"": ["0", "1", "2"]}, [], ""),
    ({"": ["train", "test", "train"]}, [], ""),
    ({"class": ["train", "test", "train"]}, [], ""),
    ({"subset": ["A", "B", "A"], "phase": ["train", "val", "val"]},
     ["train", "validation", "validation"], "column subset"),
    ({"x": [1, 2, 3], "y": [b"train", b"test", b"x"]}, [], ""),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "splits", "says"), SPLITS)
def test_columns_of_splits(columns: dict[str, list[Any]], splits: list[str], says: str) -> None:
    found = find_split_column([*columns], columns.__getitem__, facts(""))
    assert found.splits == splits
    assert any(says in note for note in found.notes) if says else found.notes == []


def test_splits_that_cannot_be_read() -> None:
    for column, asked in (("split", ""), ("where", "where")):
        with pytest.raises(DataError, match=r"^list line 1: unknown split 'later'; choose train"):
            find_split_column([column], lambda name: ["train", "later"], facts(asked))
    assert find_split_column(["split"], lambda name: ["a"], facts("none")).splits == []


@pytest.mark.parametrize(("columns", "says"), [
    ({"is_valid": [0, 1], "is_test": [0, 1]}, "line 1 is in several splits by"),
    ({"is_train": [1, 0], "is_val": [0, 0], "is_test": [0, 0]}, None),
    ({"is_train": [1, 0, 0, 0], "is_val": [0, 1, 0, 0], "is_test": [0, 0, 1, 0]}, "in no split"),
])  # fmt: skip
def test_flags_that_disagree(columns: dict[str, list[int]], says: str | None) -> None:
    if says is None:
        assert find_split_column([*columns], columns.__getitem__, facts("")).splits
        return
    with pytest.raises(DataError, match=says):
        find_split_column([*columns], columns.__getitem__, facts(""))


def test_names_that_look_alike() -> None:
    assert spell_name(" Cafe\u0301\u200b ") == "Caf\u00e9"
    spelled, notes = merge_names(["Caf\u00e9", "Cafe\u0301", "tea"], "photos")
    assert {*spelled.values()} == {"Caf\u00e9", "tea"}
    assert notes == [
        "photos: 'Caf\u00e9' is written in 2 ways that look the same, and is one class"
    ]
    for pair in (
        ("Cat", "cat"),
        ("big cat", "big_cat"),
        ("\uff21", "A"),
        ("a-b", "a b"),
        ("01", "1"),
        ("\u202ecat\u202c", "cat"),
        ("ca\u00adt", "cat"),
    ):
        assert "nearly the same" in look_alike_notes(pair, "photos")[0]
    assert (
        look_alike_notes(["cat", "cats", "1", "10", "0", "1.05", "1.5", "a01", "a1"], "photos")
        == []
    )


@pytest.mark.parametrize("cell", [None, True, 1.5, "", "  ", "a\0b", [], b"x"])
def test_cells_without_a_path(cell: object) -> None:
    assert path_in(cell) == ""


def test_a_path_as_it_is_written_comes_first() -> None:
    for path in ("a.jpg", r"a\b.jpg", "file:///a%20b.jpg", " a.jpg ", "/a/b.jpg", "Cafe\u0301.jpg"):
        spellings = [text for text, _ in path_spellings(path, "a")]
        assert spellings[0] == path
        assert len(set(spellings)) == len(spellings)
        assert "" not in spellings
    assert ("b.jpg", "without a/") in path_spellings("a/b.jpg", "a")
