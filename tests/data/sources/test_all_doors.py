"""The same thirty images through every door, with what is peculiar about data that people have.

A door writes images with their labels and splits in one form and returns the data as a user names
it. A peculiarity changes images or cells, and says what every door must make of them.
"""

import csv
import hashlib
import io
import json
import random
import shutil
import sys
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from made_files import encoded, photo, tarred
from vitlab.data.label_cells import join_labels
from vitlab.data.open import Opened, open_images
from vitlab.data.settings import Columns
from vitlab.errors import DataError

NAMES = ("ant", "bee", "cow")


@dataclass(frozen=True)
class Entry:
    """One image: where it lies, its bytes, its label or labels, and its split."""

    path: str
    content: bytes
    label: Any = None
    split: str = ""


@dataclass(frozen=True)
class Case:
    """Entries, the column that has the splits, and what every door must say.

    Attributes:
        labels: by the path of an image, where they differ from those that were written; None: the
            image is left out
        splits: by the path, likewise
        says: words in the notes of every door
    """

    entries: tuple[Entry, ...]
    column: str = "split"
    labels: Mapping[str, Any] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    doors: tuple[str, ...] = ()


def entries(ending: str = "png", kind: str = "PNG") -> tuple[Entry, ...]:
    """Thirty images, ten of each class."""
    return tuple(
        Entry(f"{name}/{name}{n}.{ending}", encoded(photo(n, 16, 16, tint), kind), name)
        for tint, name in enumerate(NAMES)
        for n in range(10)
    )


# Doors


def write_files(root: Path, own: Sequence[Entry]) -> None:
    for each in own:
        (root / each.path).parent.mkdir(parents=True, exist_ok=True)
        (root / each.path).write_bytes(each.content)


def folder(root: Path, case: Case) -> str:
    for each in case.entries:
        label = "" if each.label is None else str(each.label)
        place = root / each.split / label / Path(each.path).name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(each.content)
    return str(root)


def zipped(root: Path, case: Case) -> str:
    folder(root / "own", case)
    return shutil.make_archive(str(root / "all"), "zip", root / "own")


def glob(root: Path, case: Case) -> str:
    folder(root, case)
    return f"{root}/*/*"


def cells_of(case: Case, label: Callable[[Any], Any] = lambda each: each) -> list[dict[str, Any]]:
    rows = []
    for each in case.entries:
        row = {"path": each.path, "label": label(each.label)}
        if any(other.split for other in case.entries):
            row[case.column] = each.split
        rows.append(row)
    return rows


def spreadsheet(delimiter: str = ",", encoding: str = "utf-8", index: bool = False) -> Any:
    def write(root: Path, case: Case) -> str:
        write_files(root, case.entries)
        rows = cells_of(case, lambda each: "" if each is None else each)
        stream = io.StringIO()
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow([*([""] if index else []), *rows[0]])
        for number, row in enumerate(rows):
            writer.writerow([*([number] if index else []), *row.values()])
        (root / "list.csv").write_bytes(stream.getvalue().encode(encoding))
        return str(root / "list.csv")

    return write


def json_lines(ending: str) -> Any:
    def write(root: Path, case: Case) -> str:
        write_files(root, case.entries)
        text = "\n".join(map(json.dumps, cells_of(case)))
        (root / f"list.{ending}").write_text(text)
        return str(root / f"list.{ending}")

    return write


def pandas_csv(root: Path, case: Case) -> str:
    write_files(root, case.entries)
    pd.DataFrame(cells_of(case)).to_csv(root / "list.csv")
    return str(root / "list.csv")


def pandas_parquet(root: Path, case: Case) -> str:
    write_files(root, case.entries)
    pd.DataFrame(cells_of(case)).to_parquet(root / "list.parquet")
    return str(root / "list.parquet")


def parquet_bytes(struct: bool) -> Any:
    def write(root: Path, case: Case) -> str:
        rows = cells_of(case)
        images: list[Any] = [each.content for each in case.entries]
        if struct:
            images = [{"bytes": content, "path": None} for content in images]
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "path"}
        pq.write_table(pa.table({"image": images} | columns), root / "all.parquet")
        return str(root / "all.parquet")

    return write


def frame_of_paths(root: Path, case: Case) -> Any:
    write_files(root, case.entries)
    rows = cells_of(case)
    return pd.DataFrame([row | {"path": str(root / row["path"])} for row in rows])


def frame_of_bytes(root: Path, case: Case) -> Any:
    rows = cells_of(case)
    contents = [each.content for each in case.entries]
    return pd.DataFrame(
        [
            {"image": content} | {name: cell for name, cell in row.items() if name != "path"}
            for content, row in zip(contents, rows, strict=True)
        ]
    )


def rows_of_paths(root: Path, case: Case) -> Any:
    write_files(root, case.entries)
    return [row | {"path": root / row["path"]} for row in cells_of(case)]


def rows_of(kind: Callable[[bytes], Any]) -> Any:
    """Rows whose images are open files, or buffers."""

    def write(root: Path, case: Case) -> Any:
        del root
        contents = [each.content for each in case.entries]
        return [
            {"image": kind(content)} | {name: cell for name, cell in row.items() if name != "path"}
            for content, row in zip(contents, cells_of(case), strict=True)
        ]

    return write


def pairs(root: Path, case: Case) -> Any:
    del root
    own: dict[str, list[tuple[bytes, Any]]] = {}
    for each in case.entries:
        own.setdefault(each.split, []).append((each.content, each.label))
    return own.get("") or own


def numpy_pairs(root: Path, case: Case) -> Any:
    """Labels as NumPy has them."""
    data = pairs(root, case)
    parts = data if isinstance(data, dict) else {"": data}
    found = {
        split: [(image, np.str_(label) if isinstance(label, str) else label)
                for image, label in own]
        for split, own in parts.items()
    }  # fmt: skip
    return found.get("") or found


def as_dataset(case: Case) -> Any:
    rows = cells_of(case)
    columns: dict[str, list[Any]] = {
        name: [row[name] for row in rows] for name in rows[0] if name != "path"
    }
    columns["image"] = [{"bytes": each.content, "path": None} for each in case.entries]
    return datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())


def dataset(root: Path, case: Case) -> Any:
    del root
    return as_dataset(case)


def saved(root: Path, case: Case) -> str:
    as_dataset(case).save_to_disk(str(root / "saved"))
    return str(root / "saved")


def tar(kind: str) -> Any:
    def write(root: Path, case: Case) -> str:
        by_split: dict[str, list[Entry]] = {}
        for each in case.entries:
            by_split.setdefault(each.split, []).append(each)
        for split, own in by_split.items():
            with tarfile.open(root / f"{split or 'all'}.tar", "w") as archive:
                for each in own:
                    members = {each.path: each.content}
                    stem = each.path.rpartition(".")[0]
                    if each.label is not None:
                        text = each.label if kind == "cls" else json.dumps({"label": each.label})
                        members[f"{stem}.{kind}"] = str(text).encode()
                    for name, content in members.items():
                        info = tarfile.TarInfo(name)
                        info.size = len(content)
                        archive.addfile(info, io.BytesIO(content))
        return str(root)

    return write


DOORS: dict[str, Callable[[Path, Case], Any]] = {
    "folder": folder,
    "zip": zipped,
    "glob": glob,
    "CSV": spreadsheet(),
    "CSV with semicolons": spreadsheet(";"),
    "CSV with tabs": spreadsheet("\t"),
    "CSV in UTF-16": spreadsheet("\t", "utf-16"),
    "CSV with a mark": spreadsheet(",", "utf-8-sig"),
    "CSV with an index": spreadsheet(index=True),
    "CSV of pandas": pandas_csv,
    "JSON Lines": json_lines("jsonl"),
    "ndjson": json_lines("ndjson"),
    "Parquet of paths": pandas_parquet,
    "Parquet of bytes": parquet_bytes(struct=False),
    "Parquet of images": parquet_bytes(struct=True),
    "DataFrame of paths": frame_of_paths,
    "DataFrame of bytes": frame_of_bytes,
    "rows": rows_of_paths,
    "rows of open files": rows_of(io.BytesIO),
    "rows of buffers": rows_of(bytearray),
    "pairs": pairs,
    "pairs of NumPy": numpy_pairs,
    "datasets": dataset,
    "saved by datasets": saved,
    "tar with .cls": tar("cls"),
    "tar with .json": tar("json"),
}
OTHERS = {"folder", "zip", "glob", "pairs", "pairs of NumPy", "tar with .cls", "tar with .json"}
TABLES = tuple(name for name in DOORS if name not in OTHERS)
WITH_PATHS = tuple(name for name in TABLES if "bytes" not in name and "images" not in name
                   and "datasets" not in name)  # fmt: skip
TYPED = tuple(name for name in DOORS if "CSV" not in name
              and name not in ("folder", "zip", "glob", "tar with .cls"))  # fmt: skip


# Peculiarities


def split_at(own: Sequence[Entry], words: Sequence[str]) -> tuple[Entry, ...]:
    """The words are dealt out to the images in turn."""
    return tuple(replace(each, split=words[n % len(words)]) for n, each in enumerate(own))


def with_label(own: Sequence[Entry], change: Callable[[Entry, int], Any]) -> tuple[Entry, ...]:
    return tuple(replace(each, label=change(each, n)) for n, each in enumerate(own))


def cases() -> dict[str, Case]:
    plain = entries()
    declared = split_at(plain, ["train", "train", "test"])
    words = split_at(plain, ["Training", "TRAIN", "valid", "testing"])
    lacking = with_label(plain, lambda each, n: None if n % 10 == 3 else each.label)
    without = {each.path: None for each in lacking if each.label is None}
    thirds = split_at(plain, ["train", "train", "val", "test"])
    blind = tuple(replace(each, label=None) if each.split == "test" else each for each in thirds)
    spelled = {"ant": "Caf\u00e9", "bee": "Cafe\u0301", "cow": "tea"}
    accents = with_label(plain, lambda each, n: spelled[each.label])
    composed = {each.path: "tea" if each.label == "tea" else "Caf\u00e9" for each in accents}
    numbers = with_label(plain, lambda each, n: int(NAMES.index(each.label)) + 9)
    lines = with_label(plain, lambda each, n: {"ant": "a|b"}.get(each.label, each.label))
    dotted = tuple(
        replace(each, path=f"{each.label}/photo v1.{n}.png") for n, each in enumerate(plain)
    )
    truths = with_label(plain, lambda each, n: each.label == "ant")
    wholes = with_label(plain, lambda each, n: float(NAMES.index(each.label)))
    as_text = {each.path: str(int(each.label)) for each in wholes}
    missing_wholes = with_label(wholes, lambda each, n: None if n % 10 == 3 else each.label)
    spaced = with_label(plain, lambda each, n: f" {each.label} ")
    combined = {"ant": "clear", "bee": "clear water", "cow": "water"}
    combinations = with_label(plain, lambda each, n: combined[each.label])
    combinations = with_label(combinations, lambda e, n: "water clear" if n == 9 else e.label)
    columns = {}
    for column in ("Subset", "phase", "partition", "set", "split", "usage", "held_out", "fold"):
        own = split_at(plain, ["train", "valid", "train", "test"])
        says = (f"column {column} of",) if column in ("held_out", "fold") else ()
        columns[f"a column {column}"] = Case(own, column, says=says, doors=TABLES)
    flags = {"True": "validation", "False": "train"}
    flagged = split_at(plain, [*flags])
    return {
        "nothing": Case(plain),
        "declared splits": Case(declared),
        "words of splits": Case(words, doors=tuple(n for n in DOORS if n != "glob")),
        "labels that are missing": Case(lacking, labels=without, says=("left out 3 images",)),
        "a split without labels": Case(
            blind,
            labels={each.path: None for each in blind if each.label is None},
            says=("of the test split",),
        ),
        "names that look the same": Case(accents, labels=composed),
        "whole numbers": Case(numbers),
        "a line in a name": Case(lines),
        "dots in names": Case(dotted),
        "true and false": Case(truths, doors=(*TYPED, "CSV of pandas")),
        "numbers as fractions": Case(wholes, labels=as_text, doors=TABLES),
        "such with missing ones": Case(
            missing_wholes,
            labels=as_text | {e.path: None for e in missing_wholes if e.label is None},
            says=("left out 3 images",),
            doors=TABLES,
        ),
        "spaces around names": Case(
            spaced, labels={each.path: each.label.strip() for each in spaced}
        ),
        "combinations": Case(
            combinations, says=("2 words make 4 labels", "--label-separator ' '"), doors=TABLES
        ),
        "a column of true and false": Case(
            flagged,
            "is_valid",
            splits={each.path: flags[each.split] for each in flagged},
            says=("what is true is the validation split",),
            doors=TABLES,
        ),
        "JPEG files as browsers save them": Case(entries("jfif", "JPEG")),
        "large letters": Case(entries("JPG", "JPEG")),
        **columns,
    }


CASES = cases()
CANNOT = {  # these doors have no place for it
    "folder": {"words of splits"},
    "zip": {"words of splits"},  # TRAIN/ and Training/ are refused
    "glob": {"declared splits", "words of splits", "a split without labels",
             "labels that are missing"},
    "pairs": {"words of splits"},
    "pairs of NumPy": {"words of splits"},
}  # fmt: skip


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def wanted(case: Case) -> dict[str, tuple[str, str]]:
    """The split and the label of each image, by its content."""
    usual = {"training": "train", "valid": "validation", "val": "validation", "testing": "test"}
    present = {each.split for each in case.entries}
    found = {}
    for each in case.entries:
        label = case.labels.get(each.path, each.label)
        if label is None:
            continue
        split = each.split.lower()
        split = case.splits.get(each.path, usual.get(split, split)) if present != {""} else "all"
        found[digest(each.content)] = (split, str(label))
    return found


def seen(opened: Opened) -> dict[str, tuple[str, str]]:
    return {
        digest(source.image(n).content()): (
            split,
            "|".join(source.classes[number] for number in source.target.classes_of(n)),
        )
        for split, source in opened.parts.items()
        for n in range(len(source))
    }


PAIRS = [
    (name, door)
    for name, case in CASES.items()
    for door in (case.doors or DOORS)
    if name not in CANNOT.get(door, ())
]


@pytest.mark.parametrize(("name", "door"), PAIRS)
def test_the_same_images_are_the_same_through_every_door(
    name: str, door: str, tmp_path: Path
) -> None:
    case = CASES[name]
    shuffled = list(case.entries)
    random.Random(name).shuffle(shuffled)  # no door leans on an order
    opened = open_images(DOORS[door](tmp_path, replace(case, entries=tuple(shuffled))))
    assert seen(opened) == wanted(case)
    for words in case.says:
        assert any(words in note for note in opened.notes), opened.notes
    assert not [note for note in opened.notes if "\n" in note]
    assert opened.parts[next(iter(opened.parts))].target.several is False


SPELLINGS: dict[str, tuple[Callable[[Path, str], str], str]] = {
    "backslashes": (lambda root, path: path.replace("/", "\\"), "with / for \\"),
    "a dot first": (lambda root, path: f"./{path}", ""),
    "a dot and backslashes": (lambda root, path: f".\\{path}".replace("/", "\\"), "with /"),
    "spaces around": (lambda root, path: f" {path} ", "without the spaces"),
    "quotes around": (lambda root, path: f'"{path}"', "without the spaces or quotes"),
    "absolute": (lambda root, path: str(root / path), ""),
    "as URLs": (lambda root, path: f"file://{root / path}".replace(" ", "%20"), "as URLs"),
    "percent signs": (lambda root, path: path.replace(" ", "%20"), "with % decoded"),
    "the folder's name first": (lambda root, path: f"{root.name}/{path}", "without here/"),
    "a slash first": (lambda root, path: f"/{path}", "relative to the folder"),
    "decomposed": (lambda root, path: unicodedata.normalize("NFD", path), "in Unicode's NFC"),
}
LISTS: dict[str, Callable[[Path, list[dict[str, Any]]], Any]] = {
    "CSV": lambda root, rows: written(root / "list.csv", pd.DataFrame(rows).to_csv(index=False)),
    "JSON Lines": lambda root, rows: written(root / "a.jsonl", "\n".join(map(json.dumps, rows))),
    "Parquet": lambda root, rows: parquet_of(root / "list.parquet", pd.DataFrame(rows)),
}


def written(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    return str(file)


def parquet_of(file: Path, frame: pd.DataFrame) -> str:
    frame.to_parquet(file)
    return str(file)


@pytest.mark.parametrize("door", LISTS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_paths_as_other_systems_write_them(spelling: str, door: str, tmp_path: Path) -> None:
    root = tmp_path / "here"
    own = [replace(each, path=f"caf\u00e9 {each.path}") for each in entries()]
    write_files(root, own)
    write, says = SPELLINGS[spelling]
    rows = [{"path": write(root, each.path), "label": each.label} for each in own]
    opened = open_images(LISTS[door](root, rows))
    assert seen(opened) == wanted(Case(tuple(own)))
    assert any(says in note and "30 of the 30 paths" in note for note in opened.notes) or not says


def test_some_paths_may_be_of_another_system(tmp_path: Path) -> None:
    own = entries()
    write_files(tmp_path, own)
    rows = [{"path": each.path.replace("/", "\\" if n % 3 else "/"), "label": each.label}
            for n, each in enumerate(own)]  # fmt: skip
    opened = open_images(LISTS["CSV"](tmp_path, rows))
    assert seen(opened) == wanted(Case(own))
    assert any("20 of the 30 paths" in note for note in opened.notes)


def test_images_that_two_folders_have_are_not_guessed(tmp_path: Path) -> None:
    own = entries()
    for folder_name in ("large", "small"):
        write_files(tmp_path / folder_name, own)
    rows = [{"path": each.path, "label": each.label} for each in own]
    with pytest.raises(DataError, match=r"large and .*small: name one with --images"):
        open_images(LISTS["CSV"](tmp_path, rows))
    known = Columns(images=str(tmp_path / "small"))
    assert seen(open_images(LISTS["CSV"](tmp_path, rows), columns=known)) == wanted(Case(own))
    write_files(tmp_path, own)  # the list's own folder comes first
    assert seen(open_images(LISTS["CSV"](tmp_path, rows))) == wanted(Case(own))


def test_a_list_beside_many_folders_lists_each_once(tmp_path: Path) -> None:
    own = entries()
    write_files(tmp_path / "images", own)
    for number in range(200):
        (tmp_path / f"other{number}").mkdir()
    rows = [{"a": "x", "where": each.path, "b": "y", "c": "z", "kind": each.label} for each in own]
    data = LISTS["CSV"](tmp_path, rows)
    looked_at = list[str]()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("os.listdir", "os.scandir"):
            looked_at.append(str(arguments[0]))

    watching = True
    sys.addaudithook(watch)
    known = Columns(label_column=("kind",))
    opened = open_images(data, columns=known)
    watching = False
    assert seen(opened) == wanted(Case(own))
    assert max(Counter(looked_at).values()) <= 2  # which folders there are, and what is in them


NUMBERED = (  # numbers, and the names that they index
    ("datasets", lambda root, rows, names: hub_rows(rows, names)),
    ("Parquet", lambda root, rows, names: str(hub_parquet(root, rows, names))),
    ("pairs", lambda root, rows, names: {"train": rows, "classes": names}),
    ("tar", lambda root, rows, names: numbered_tar(root, rows, names)),
)


def hub_rows(rows: list[tuple[bytes, int]], names: Sequence[str]) -> Any:
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))}
    columns = {"image": [{"bytes": content, "path": None} for content, _ in rows],
               "label": [label for _, label in rows]}  # fmt: skip
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def hub_parquet(root: Path, rows: list[tuple[bytes, int]], names: Sequence[str]) -> Path:
    hub_rows(rows, names).to_parquet(str(root / "all.parquet"))
    return root / "all.parquet"


def numbered_tar(root: Path, rows: list[tuple[bytes, int]], names: Sequence[str]) -> str:
    (root / "classes.txt").write_text("\n".join(names))
    members = []
    for number, (content, label) in enumerate(rows):
        members += [(f"{number}.png", content), (f"{number}.cls", str(label).encode())]
    (root / "all.tar").write_bytes(tarred(*members))
    return str(root / "all.tar")


@pytest.mark.parametrize(("door", "write"), NUMBERED)
def test_minus_one_is_no_label_where_numbers_index_names(
    door: str, write: Callable[..., Any], tmp_path: Path
) -> None:
    names = ["dog", "cat", "ant"]
    rows = [(each.content, n % 4 - 1) for n, each in enumerate(entries())]
    opened = open_images(write(tmp_path, rows, names))
    expected = {digest(content): ("all", names[label]) for content, label in rows if label >= 0}
    assert seen(opened) == expected
    assert opened.parts["all"].classes == tuple(names)
    assert any("left out 8 images without a label" in note for note in opened.notes)


def test_minus_one_without_names_is_a_class_and_said() -> None:
    rows = [{"image": each.content, "label": n % 3 - 1} for n, each in enumerate(entries())]
    opened = open_images(rows)
    assert opened.parts["all"].classes == ("-1", "0", "1")
    assert any("10 images have the class '-1'" in note for note in opened.notes)


SEVERAL: dict[str, Callable[[Path, list[tuple[Entry, list[str]]]], Any]] = {
    "JSON Lines": lambda root, own: written(
        root / "a.jsonl", "\n".join(json.dumps({"path": e.path, "labels": names})
                                    for e, names in own)),
    "CSV": lambda root, own: written(
        root / "a.csv", "path,labels\n" + "\n".join(f"{e.path},{join_labels(names)}"
                                                    for e, names in own)),
    "Parquet": lambda root, own: parquet_of(
        root / "a.parquet", pd.DataFrame([{"image": e.content, "labels": names}
                                          for e, names in own])),
    "DataFrame": lambda root, own: pd.DataFrame(
        [{"image": e.content, "labels": np.array(names)} for e, names in own]),
    "rows": lambda root, own: [{"image": e.content, "labels": set(names)} for e, names in own],
    "pairs": lambda root, own: [(e.content, tuple(names)) for e, names in own],
    "datasets": lambda root, own: datasets.Dataset.from_list(
        [{"image": {"bytes": e.content, "path": None}, "labels": names} for e, names in own]
    ).cast_column("image", datasets.Image()),
    "tar": lambda root, own: several_tar(root / "a.tar", own),
}  # fmt: skip


def several_tar(file: Path, own: list[tuple[Entry, list[str]]]) -> str:
    members = []
    for entry, names in own:
        stem = entry.path.rpartition(".")[0]
        text = json.dumps({"labels": names}).encode()
        members += [(entry.path, entry.content), (f"{stem}.json", text)]
    file.write_bytes(tarred(*members))
    return str(file)


@pytest.mark.parametrize("door", SEVERAL)
def test_several_labels_through_every_door(door: str, tmp_path: Path) -> None:
    own = [(each, [each.label, "a|b"][: n % 3]) for n, each in enumerate(entries())]
    write_files(tmp_path, [each for each, _ in own])
    opened = open_images(SEVERAL[door](tmp_path, own))
    source = opened.parts["all"]
    assert source.target.several
    found = {digest(source.image(n).content()): {source.classes[k] for k in
                                                 source.target.classes_of(n)}
             for n in range(len(source))}  # fmt: skip
    assert found == {digest(each.content): set(names) for each, names in own}


LITTER = ("Thumbs.db", ".DS_Store", "._ant1.png", "@eaDir/ant1.png/SYNOPHOTO_THUMB_M.jpg",
          "__MACOSX/ant/._ant1.png", "desktop.ini", "#recycle/old.png", "notes.txt")  # fmt: skip


@pytest.mark.parametrize("door", ["folder", "zip", "glob", "tar"])
def test_what_systems_add_is_no_image(door: str, tmp_path: Path) -> None:
    own = entries()
    if door == "tar":
        members = [(name, b"x") for name in LITTER]
        members += [(f"ant/{name}", own[0].content) for name in LITTER if "png" in name]
        for each in own:
            stem = each.path.rpartition(".")[0]
            members += [(each.path, each.content), (f"{stem}.cls", each.label.encode())]
        (tmp_path / "all.tar").write_bytes(tarred(*members))
        data = str(tmp_path / "all.tar")
    else:
        data = folder(tmp_path, Case(own))
        for place in ("", "ant"):
            for name in LITTER:
                (tmp_path / place / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / place / name).write_bytes(own[3].content)
        data = f"{tmp_path}/*/*.*" if door == "glob" else data
        if door == "zip":
            data = shutil.make_archive(str(tmp_path.with_suffix("")), "zip", tmp_path)
    opened = open_images(data)
    assert seen(opened) == wanted(Case(own))
    skipped = [note for note in opened.notes if "skipped" in note]
    assert len(skipped) == (door == "glob"), skipped  # whose pattern names notes.txt


def test_a_list_in_the_folder_of_each_split(tmp_path: Path) -> None:
    """Hugging Face's folders of images: train/metadata.csv, test/metadata.csv."""
    own = split_at(entries(), ["train", "train", "test"])
    for split in ("train", "test"):
        part = [each for each in own if each.split == split]
        write_files(tmp_path / split, part)
        rows = [{"file_name": each.path, "label": each.label} for each in part]
        pd.DataFrame(rows).to_csv(tmp_path / split / "metadata.csv", index=False)
    assert seen(open_images(str(tmp_path))) == wanted(Case(own))


def test_a_column_of_splits_in_data_that_comes_in_splits_is_named(tmp_path: Path) -> None:
    own = entries()
    rows = [{"image": each.content, "label": each.label, "split": ["train", "test"][n % 2]}
            for n, each in enumerate(own)]  # fmt: skip
    opened = open_images({"train": rows[::3] + rows[1::3], "test": rows[2::3]})
    assert [len(part) for part in opened.parts.values()] == [20, 10]
    for name in ("train", "test"):
        pd.DataFrame(rows).to_parquet(tmp_path / f"{name}.parquet")
    notes = open_images(str(tmp_path)).notes
    assert sum("plays no part: the data comes in splits" in note for note in notes) == 2


def test_a_further_split_of_a_data_set_is_said_in_memory_as_on_the_disk(tmp_path: Path) -> None:
    own = [dataset(tmp_path, Case(entries())).select(range(n, 30, 3)) for n in range(3)]
    data = datasets.DatasetDict(dict(zip(("train", "test", "extra"), own, strict=True)))
    data.save_to_disk(str(tmp_path / "saved"))
    for each in (data, str(tmp_path / "saved")):
        opened = open_images(each)
        assert [*opened.parts] == ["train", "test"]
        assert any(note.startswith("ignored what is not a split of") for note in opened.notes)
