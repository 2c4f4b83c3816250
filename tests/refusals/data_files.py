"""Folders, tables and files that are no data as they stand."""

import os
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conftest import photo, photo_folder
from made_files import png
from refusals.files import register, shards, two_classes, under_data, yolo

FILES = (
    "x.tar.gz", "x.TGZ", "x.tar.bz2", "x.tbz2", "x.tar.xz", "x.tar.zst", "x.7z", "x.rar", "x.gz",
    "x.lzh", "x.xlsx", "x.XLS", "x.ods", "x.json", "x.yaml", "x.npy", "x.npz", "x.mat", "x.h5",
    "x.pkl", "x.pt", "x.hdf5", "x.tfrecord", "x.lmdb", "x.rec", "x.arrow", "x.feather",
)  # fmt: skip
LABELS: dict[str, list[Any]] = {
    "fractions": [0.5, 1.0],
    "infinity": [float("inf"), 1.0],
    "records": [{"a": 1}, {"a": 2}],
    "bytes": [b"a", b"b"],
    "dates": [date(2026, 1, 1), date(2026, 1, 2)],
    "nulls": [None, None],
    "lists_with_a_null": [["a", None], ["b"]],
    "lists_of_fractions": [[0.5], [1.0]],
    "lists_of_lists": [[["a"]], [["b"]]],
}
HUGE = 40 * 2**30  # bytes of a file without content, more than any limit


@register
def few(folder: Path) -> None:
    """An image of each class."""
    photo_folder(folder, {"a": 1, "b": 1})


@register
def text(folder: Path) -> None:
    """A text."""
    (folder / "x.txt").write_text("x")


@register
def holiday(folder: Path) -> None:
    """A split, and what may be one."""
    for name in ("train", "holiday"):
        photo_folder(folder / name, {"ant": 3, "bee": 3})


@register
def val_and_test(folder: Path) -> None:
    """Splits without the one to learn from."""
    for name in ("val", "test"):
        photo_folder(folder / name, {"ant": 3, "bee": 3})


@register
def flat_splits(folder: Path) -> None:
    """Splits without classes."""
    photo_folder(folder, {"train": 3, "valid": 2})


@register
def like_splits(folder: Path) -> None:
    """Folders that are like splits, of the same classes each."""
    for number, names in enumerate((
        ("trainval", "test"), ("train_v1", "train_v2", "test"), ("train_set", "holdout"),
        ("training_data", "validation_data", "evaluation"),
    )):  # fmt: skip
        for name in names:
            photo_folder(folder / str(number) / name, {"cat": 1, "dog": 1}, 8, 8)


@register
def other_class(folder: Path) -> None:
    """A class to test on that is not learned."""
    photo_folder(folder / "train", {"ant": 3, "bee": 3})
    photo_folder(folder / "test", {"dog": 2})


@register
def archives(folder: Path) -> None:
    """Folders of archives alone."""
    for kind, ending in (("zips", "zip"), ("tars", "tar.gz")):
        (folder / kind).mkdir()
        for name in (f"train.{ending}", f"test.{ending}", "readme.txt"):
            (folder / kind / name).write_bytes(b"PK")


@register
def list_inside(folder: Path) -> None:
    """An image and a list of it."""
    photo(1).save(folder / "1.jpg")
    (folder / "labels.csv").write_text("path,label\n1.jpg,cat\n")


@register
def columns(folder: Path) -> None:
    """A list with columns of odd names."""
    two_classes(folder)
    rows = [f"{n},{'ab'[n // 6]}/00{n % 6}.png,{'xy'[n % 2]},{n % 3}" for n in range(12)]
    (folder / "list.csv").write_text("\n".join(["nr,where,mark,label", *rows]) + "\n")


def write(file: Path, table: dict[str, Any]) -> None:
    """Write a Parquet file."""
    pq.write_table(pa.table(table), file)


@register
def tables(folder: Path) -> None:
    """Parquet files: one that is right, and others."""
    images = [{"bytes": png(number), "path": None} for number in range(8)]
    scans = {"scan": [png(number) for number in range(8)], "label": ["x", "y"] * 4}
    scans |= {"side": list("lrlrlrlr")}
    write(folder / "two.parquet", scans)
    write(folder / "scans.parquet", scans | {"mask": scans["scan"]})
    write(folder / "unlabeled.parquet", {"image": images})
    write(folder / "labels.parquet", {"label": ["cat", "ape"] * 4})
    same = [pa.array(["a.png"]), pa.array(["a"]), pa.array(["b"])]
    pq.write_table(pa.table(same, names=["path", "label", "label"]), folder / "same.parquet")
    (folder / "damaged.parquet").write_bytes(b"PAR1 not really")


@register
def cells(folder: Path) -> None:
    """Parquet files by what their cells hold."""
    images = [{"bytes": png(number), "path": None} for number in range(12)]
    for name, values in LABELS.items():
        write(folder / f"{name}.parquet", {"image": images, "label": values * 6})
    for name, kind in (
        ("no_images", pa.list_(pa.uint8())), ("numbers", pa.int64()),
        ("other_records", pa.struct([("x", pa.int8())])),
    ):  # fmt: skip
        kind = pa.struct([("bytes", kind), ("path", pa.string())])
        none = pa.array([{"bytes": None, "path": None}] * 12, kind)
        write(folder / f"{name}.parquet", {"image": none, "label": [0, 1] * 6})


@register
def odd_bytes(folder: Path) -> None:
    """Files of bytes that are no text, too many, or nested without end."""
    two_classes(folder)
    (folder / "list.csv").write_bytes(b"\xff\xfe\0path")
    (folder / "name.csv").write_text("path,label\n" + "x" * 6000 + ",a\n")
    (folder / "deep.jsonl").write_text("[" * 100_000)
    (folder / "number.jsonl").write_text('{"path": "a/000.png", "label": ' + "9" * 10_000 + "}")
    for name, make in (
        ("fiftyone", under_data), ("shards", shards), ("long", yolo), ("many", yolo),
    ):  # fmt: skip
        (folder / name).mkdir()
        make(folder / name)
    (folder / "fiftyone" / "labels.json").write_text("[" * 100_000)
    (folder / "shards" / "classes.txt").write_bytes(b"a\nb\n\xff\n")
    (folder / "long" / "labels" / "1.txt").write_text("0 " * 600_000)
    (folder / "many" / "labels" / "1.txt").write_text("0 0.25 0.5 0.1 0.2\n" * 10_001)
    for name in ("huge.csv", "huge.jsonl"):
        with (folder / name).open("wb") as stream:
            stream.truncate(HUGE)


@register
def pipes(folder: Path) -> None:
    """Pipes, which nobody fills."""
    for name in ("x.parquet", "x.tar", "x.csv", "x.jsonl"):
        os.mkfifo(folder / name)


@register
def files(folder: Path) -> None:
    """Files of many kinds, by their names."""
    for name in FILES:
        (folder / name).write_bytes(b"PK\3\4" * 100)
