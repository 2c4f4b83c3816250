"""Lists of paths, one label an image or several."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import photo_folder
from places_opened import open_targets
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Columns, Data
from vitlab.data.sources.paths import Names
from vitlab.data.standardize import standardize
from vitlab.errors import DataError
from vitlab.models.config import ViTConfig


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return photo_folder(tmp_path, {"a": 6, "b": 6})


def csv(folder: Path, *lines: str) -> str:
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "list.csv")


def jsonl(folder: Path, *rows: object) -> str:
    (folder / "list.jsonl").write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    return str(folder / "list.jsonl")


def test_a_csv_list_with_splits(here: Path) -> None:
    lines = [f"a/00{i}.png,10,train" for i in range(4)] + [f"b/00{i}.png,9,train" for i in range(4)]
    lines += ["a/004.png,10,val", "b/004.png,9,test", '"b/005.png","9","TEST"']
    splits = open_to_learn(csv(here, "path,label,split", *lines))
    assert splits.classes == ("9", "10")  # by value
    assert splits.train.target.values.tolist() == [1] * 4 + [0] * 4
    assert splits.test.target.values.tolist() == [0, 0]
    assert len(splits.validation) == 1
    assert splits.test.image(1).content() == (here / "b" / "005.png").read_bytes()
    assert splits.test.name(1) == str(here / "b" / "005.png")


def test_several_labels_an_image(here: Path) -> None:
    rows = [
        {"path": "a/000.png", "labels": ["cat", "night"]},
        {"path": "a/001.png", "labels": []},
        {"path": "b/000.png", "labels": ["cat"]},
        {"path": "b/001.png", "label": "dog"},
        {"path": "b/002.png", "labels": ["dog", "night"], "split": "test"},
    ]
    splits = open_to_learn(jsonl(here, *rows))
    assert splits.classes == ("cat", "dog", "night")
    assert splits.train.target.values.dtype == np.uint8
    assert splits.train.target.values.tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert splits.test.target.values.tolist() == [[0, 1, 1]]
    assert splits.train.counts() == {"cat": 2, "dog": 1, "night": 1}
    config = ViTConfig(width=16, heads=2, patch=4, image_size=8, classes=3)
    batch = EvaluationBatches(splits.train, config, 8)[0]
    assert batch.labels.dtype == torch.float32
    assert batch.labels.tolist() == splits.train.target.values.tolist()
    same = csv(here, "path,labels", "a/000.png,cat|night", "a/001.png,", "b/000.png, cat ")
    assert open_to_learn(same).whole.target.values.tolist() == [[1, 1], [0, 0], [1, 0]]
    assert "20% of the images held out for testing" in open_to_learn(same).notes[0]


def test_lines_end_where_lines_end(here: Path) -> None:
    """Unicode has further ends of lines, which may stand in names and labels."""
    for odd in "\u2028\x85\x0c":
        rows = [(f"{'ab'[n % 2]}/00{n}.png", f"{'xy'[n % 2]}{odd}z") for n in range(6)]
        text = [
            json.dumps({"path": path, "label": label}, ensure_ascii=False) for path, label in rows
        ]
        for kind, lines in (("jsonl", text), ("csv", ["path,label", *map(",".join, rows)])):
            (here / f"list.{kind}").write_text("\n".join(lines), encoding="utf-8")
            splits = open_to_learn(str(here / f"list.{kind}"))
            assert [each.strip() for each in splits.classes] == [f"x{odd}z", f"y{odd}z"]


def test_the_lowest_fold_is_tested(here: Path) -> None:
    """By value; rows without one are learned from."""
    lines = [f"{'ab'[n % 2]}/00{n}.png,{n % 2},{('10', '', '2')[n // 2]}" for n in range(6)]
    splits = open_to_learn(csv(here, "path,label,fold", *lines))
    assert [Path(splits.test.name(n)).name for n in range(len(splits.test))] == [
        "004.png",
        "005.png",
    ]
    assert len(splits.train) == 4
    assert "2 is the test split, the other 1 are for training" in splits.notes[0]


def test_names_are_packed() -> None:
    texts = ["", "a.jpg", "ä/ö.png", "bad\udcff", "end"]
    names = Names.of(texts)
    assert list(names) == texts
    assert names[-1] == "end"
    assert "ä/ö.png" in names
    assert len(Names.of([])) == 0
    with pytest.raises(IndexError):
        names[5]


SHAPES: dict[str, list[str]] = {
    "other names": ["Image_ID,Breed", "000,x", "001,y"], "no header": ["000.png,x", "001.png,y"],
    "semicolons": ["file;klass", "000.png;x", "001.png;y"],
    "tabs": ["file\tklass", "000.png\tx", "001.png\ty"],
    "endings left out": ["id,species", "000,x", "001,y"],
    "one-hot": ["image_id,x,y", "000,1,0", "001,0,1"],
    "one other column": ["photo,mark", "000.png,x", "001.png,y"],
}  # fmt: skip


@pytest.mark.parametrize("inside", ["", "train_images"])
@pytest.mark.parametrize("shape", SHAPES)
def test_lists_as_people_have_them(tmp_path: Path, shape: str, inside: str) -> None:
    """The images are beside the list, or in a folder there."""
    photo_folder(tmp_path, {inside or "other": 6})
    if not inside:
        for image in (tmp_path / "other").iterdir():
            image.rename(tmp_path / image.name)
    *head, first, second = SHAPES[shape]
    names = [(f"00{n}", f"00{n + 1}") for n in (0, 2, 4)]
    pairs = [(first.replace("000", a), second.replace("001", b)) for a, b in names]
    whole = open_to_learn(csv(tmp_path, *head, *sum(pairs, ()))).whole
    assert whole.classes == ("x", "y")
    assert whole.target.values.tolist() == [0, 1] * 3
    assert whole.name(1) == str(tmp_path / inside / "001.png")
    assert whole.image(3).content() == (tmp_path / inside / "003.png").read_bytes()


def test_several_labels_in_one_cell(here: Path) -> None:
    rows = [f"a/00{i}.png,{i % 3} {i % 2 + 3}" for i in range(6)]
    splits = open_to_learn(csv(here, "Id,Target", *rows))
    assert splits.classes == ("0", "1", "2", "3", "4")
    assert splits.train.target.several
    rows = [f"a/00{i}.png,cat; dog" if i % 2 else f"a/00{i}.png,cat" for i in range(6)]
    columns = Columns(label_separator=";")
    splits = open_to_learn(csv(here, "path,tags", *rows), options=columns)
    assert splits.classes == ("cat", "dog")
    several = ["path,a,b", "a/000.png,1,1", "a/001.png,0,0", "a/002.png,1,0", "a/003.png,0,1"]
    splits = open_to_learn(csv(here, *several))
    assert splits.whole.target.values.tolist() == [[1, 1], [0, 0], [1, 0], [0, 1]]


def test_columns_that_the_user_names(here: Path, tmp_path: Path) -> None:
    lines = [f"{i},{'ab'[i // 6]}/00{i % 6}.png,{'xy'[i % 2]},{i % 3}" for i in range(12)]
    data = csv(here, "nr,where,mark,label", *lines)
    assert open_to_learn(data).classes == ("0", "1", "2")
    columns = Columns(path_column="where", label_column=("mark",))
    splits = open_to_learn(data, options=columns)
    assert splits.classes == ("x", "y")
    assert any("images are in column where, labels in mark" in note for note in splits.notes)
    elsewhere = tmp_path / "lists"
    elsewhere.mkdir()
    data = csv(elsewhere, "path,label", *(f"a/00{i}.png,{i % 2}" for i in range(6)))
    assert len(open_to_learn(data, options=Columns(images=str(here))).train) == 4


@pytest.mark.parametrize("head", ["path,label", "path,label,,"])
def test_empty_fields_at_the_end_of_some_lines(here: Path, head: str) -> None:
    lines = [f"a/00{i}.png,x," + "," * i for i in range(3)] + ["b/000.png,y", "b/001.png,y"]
    opened = open_images(csv(here, head, *lines))
    assert opened.every().target.counts(2) == [3, 2]


@pytest.mark.parametrize("root", ["/home/her/photos/", "C:\\Users\\her\\", "file:///D:/data/"])
def test_absolute_paths_of_another_machine(here: Path, root: str) -> None:
    lines = [f"{root}{kind}/00{i}.png,{kind}" for kind in "ab" for i in range(3)]
    if "\\" in root:
        lines = [line.replace("/", "\\") for line in lines]
    opened = open_images(csv(here, "path,label", *lines))
    assert opened.every().name(3) == str(here / "b/000.png")
    assert "6 of the 6 paths" in opened.notes[0]
    moved = here / "moved"
    moved.mkdir()
    opened = open_images(csv(moved, "path,label", *lines), columns=Columns(images=str(here)))
    assert opened.every().name(3) == str(here / "b/000.png")
    with pytest.raises(DataError, match=r"1 of the 7 files|on another machine"):
        open_images(csv(here, "path,label", *lines, f"{root}c/000.png,c"))
    with pytest.raises(
        DataError, match=r"1 of the 1 files|on another machine"
    ):  # a name alone could be anything's
        open_images(csv(here / "a", "path,label", f"{root}000.png,c"))


def test_an_empty_column_is_no_label(here: Path) -> None:
    files = sorted(here.glob("*/*.png"))
    rows = "".join(f"{file.relative_to(here)},{file.parent.name},\n" for file in files)
    (here / "rows.csv").write_text(f"image,predicted,error\n{rows}")
    notes = open_images(str(here / "rows.csv")).notes
    assert any("labels in predicted" in note for note in notes)


def test_a_number_that_all_images_have_is_not_learned(here: Path) -> None:
    names = [f"{c}/00{i}.png" for c in "ab" for i in range(6)]
    for numbers, said in (
        ("000000000000", "n is 0 in"),
        ("777777777777", "n is 7 in"),
        ("0" * 11 + "1", ""),
    ):
        data = csv(here, "path,n", *(f"{each},{n}" for each, n in zip(names, numbers, strict=True)))
        splits = replace(found := open_targets(data, ["n"], Data()), train=found.whole)
        with pytest.raises(DataError, match=said) if said else nullcontext():
            assert standardize(splits).train.target.scale[0] == pytest.approx(1 / 12)


def test_metadata_in_a_folder_is_a_list_if_it_names_files(here: Path) -> None:
    lines = [f"a/00{i}.png,{'xy'[i % 2]}" for i in range(6)]
    (here / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    assert open_to_learn(str(here)).classes == ("x", "y")
    (here / "metadata.jsonl").write_text('{"file_name": "a/000.png", "label": "z"}')
    line = f"ignored {here / 'metadata.jsonl'}: metadata.csv is the list of that folder"
    assert line in open_to_learn(str(here)).notes
    (here / "metadata.jsonl").unlink()
    (here / "metadata.csv").write_text("author,license\nsomebody,CC0\n")
    assert open_to_learn(str(here)).classes == ("a", "b")


def test_an_image_that_is_listed_with_two_labels_is_told(here: Path) -> None:
    rows = [f"{c}/00{i}.png,{c}" for c in "ab" for i in range(6)]
    again = ["./a/001.png,b", "a/002.png,b", "b/003.png,b"]
    notes = open_to_learn(csv(here, "path,label", *rows, *again)).notes
    line = f"2 images are in {here / 'list.csv'} more than once with different labels: "
    assert f"{line}a/001.png, a/002.png" in notes
    several = [{"path": "a/000.png", "labels": ["x", "y"]}, {"path": "b/000.png", "labels": ["x"]}]
    data = jsonl(here, *several, {"path": "a/000.png", "labels": ["y", "x"]})
    assert not any("more than once" in note for note in open_to_learn(data).notes)
