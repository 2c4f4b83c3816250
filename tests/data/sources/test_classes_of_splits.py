"""Classes that only one split has, for every kind of data."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from conftest import TINY, call, photo
from made_files import png, tarred
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn, split_opened
from vitlab.data.summary import missing_lines
from vitlab.errors import DataError

Labels = dict[str, list[str]]
NAMES = ["ant", "bee", "cow", "dog"]


def folders(root: Path, splits: Labels) -> str:
    for split, labels in splits.items():
        for number, label in enumerate(labels):
            (root / split / label).mkdir(parents=True, exist_ok=True)
            (root / split / label / f"{number}.png").write_bytes(png(number))
    return str(root)


def dataset(labels: list[str], kind: str) -> Any:
    names = datasets.ClassLabel(names=NAMES)
    column = {"words": datasets.Value("string"), "names": names, "lists": datasets.List(names)}
    features = datasets.Features({"image": datasets.Image(), "label": column[kind]})
    own = [[label] for label in labels] if kind == "lists" else labels
    images = [photo(number, 16, 16) for number in range(len(labels))]
    return datasets.Dataset.from_dict({"image": images, "label": own}, features=features)


def parquet(kind: str) -> Callable[[Path, Labels], str]:
    def write(root: Path, splits: Labels) -> str:
        for split, labels in splits.items():
            dataset(labels, kind).to_parquet(str(root / f"{split}.parquet"))
        return str(root)

    return write


def listed(root: Path, splits: Labels, *, several: bool = False) -> str:
    lines = []
    for split, labels in splits.items():
        for number, label in enumerate(labels):
            file = root / f"{split}{number}.png"
            file.write_bytes(png(number))
            own = {"labels": [label]} if several else {"label": label}
            lines.append(json.dumps({"path": file.name, "split": split} | own))
    (root / "list.jsonl").write_text("\n".join(lines))
    return str(root / "list.jsonl")


def shards(root: Path, splits: Labels, *, numbers: bool = False) -> str:
    if numbers:
        (root / "classes.txt").write_text("\n".join(NAMES))
    for split, labels in splits.items():
        members = []
        for number, label in enumerate(labels):
            text = str(NAMES.index(label)) if numbers else label
            members += [(f"{number:03d}.png", png(number)), (f"{number:03d}.cls", text.encode())]
        (root / f"{split}.tar").write_bytes(tarred(*members))
    return str(root)


KINDS: dict[str, Callable[[Path, Labels], str]] = {
    "folders": folders, "list": listed,
    "several": lambda root, splits: listed(root, splits, several=True), "shards": shards,
    "numbered": lambda root, splits: shards(root, splits, numbers=True), "words": parquet("words"),
    "names": parquet("names"), "lists": parquet("lists"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_only_one_split_has(kind: str, tmp_path: Path) -> None:
    for split in ("val", "test", "own"):
        (root := tmp_path / split).mkdir()
        data = {"train": ["ant", "bee"], "val": ["ant"], "test": ["bee"]}
        if split != "own":
            data[split] = ["bee", "dog", "ant", "cow"]
            with pytest.raises(DataError) as caught:
                open_to_learn(KINDS[kind](root, data))
            message = str(caught.value)
            assert message.endswith("contains class 'cow', which is not in the training data")
            assert str(root) in message
            assert "\n" not in message
    data = {"train": ["bee", "ant", "cow", "ant"], "val": ["cow"], "test": ["bee", "cow"]}
    splits = open_to_learn(KINDS[kind](tmp_path / "own", data))
    assert splits.classes[:3] == ("ant", "bee", "cow")
    assert [splits.test.target.classes_of(index) for index in range(2)] == [(1,), (2,)]
    lines = missing_lines(splits)
    assert "the validation images have none of the classes ant and bee" in lines
    assert "the test images have none of the class ant" in lines
    known = len(splits.classes) == 4  # the data names a class that it has no image of
    assert ("the training images have none of the class dog" in lines) == known


def test_a_model_is_evaluated_on_whatever_classes_it_knows(tmp_path: Path) -> None:
    """The training images of the data play no part there."""
    data = parquet("names")(tmp_path, {"train": ["ant", "bee"], "test": ["bee", "dog"]})
    splits = split_opened(open_images(data, classes=tuple(NAMES)))
    assert splits.test.target.values.tolist() == [1, 3]


def test_training_says_which_classes_it_cannot_test(tmp_path: Path, capsys) -> None:
    data = folders(tmp_path / "d", {"train": ["ant", "bee", "cow"] * 4, "test": ["bee", "bee"]})
    words = ["train", data, "--out", str(tmp_path / "run"), "--workers", "0", "--image-size", "16"]
    words += ["--check-duplicates", "no"]  # all images are the same one
    status, _, err = call(capsys, *words, "--model", TINY["model"], "--steps", "1")
    assert status == 0
    assert err.count("the test images have none of the classes ant and cow") == 1


def test_rows_without_a_label_are_left_out_and_said(tmp_path: Path) -> None:
    cells = [{"bytes": png(number), "path": None} for number in range(12)]
    for labels in (["ant", "bee", None], [0, 1, None], [0.0, 1.0, math.nan]):
        own = pa.table({"image": cells, "label": labels * 4})
        pq.write_table(own, file := tmp_path / "a.parquet")
        splits = open_to_learn(str(file))
        assert len(splits.whole) == 8
        assert splits.notes[0] == (
            f"left out 4 images without a label: column label of {file} train is empty (row 2, "
            "row 5, row 8, …)"
        )
