"""Other people's data: sizes are known before anything is read, and paths stay inside."""

import os
import pickle
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import vitlab
from conftest import BRIEF, photo, photo_folder
from made_files import png
from vitlab.data.images import Images
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Columns
from vitlab.data.sources.paths import Inside
from vitlab.data.sources.pictures import stored
from vitlab.errors import DataError, ImageError
from vitlab.recipes.recipe import Host

SMALL = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/8", "image_size": 16}
TOO_LARGE = "bytes exceed the limit of 268,435,456"


def cells(**changed: object) -> list[dict[str, object]]:
    """Twelve images, of which the first is changed."""
    found: list[dict[str, object]] = [{"bytes": png(n), "path": None} for n in range(12)]
    found[0] |= changed
    return found


def table(folder: Path, images: Any = None, labels: Any = None) -> str:
    """A Parquet file of twelve rows."""
    folder.mkdir(exist_ok=True)
    columns = {"image": images or cells(), "label": labels or [0, 1] * 6}
    pq.write_table(pa.table(columns), folder / "all.parquet")
    return str(folder / "all.parquet")


def whole(data: str, **columns: Any) -> Images:
    return open_to_learn(data, options=Columns(**columns)).whole


def sparse(file: Path, size: int = 40 * 2**30) -> Path:
    """A file of any size that takes no room."""
    with file.open("wb") as stream:
        stream.truncate(size)
    return file


def listed(folder: Path, *paths: str) -> str:
    """A list of six images in its folder, and of others."""
    photo_folder(folder, {"a": 3, "b": 3})
    own = [f"{name}/{n:03d}.png,{name}" for name in "ab" for n in range(3)]
    (folder / "list.csv").write_text("\n".join(["path,label", *own, *(f"{p},a" for p in paths)]))
    return str(folder / "list.csv")


def test_huge_files_are_refused_before_they_are_read(tmp_path: Path, monkeypatch) -> None:
    root = photo_folder(tmp_path / "photos", {"a": 3, "b": 3})
    sparse(root / "a" / "huge.jpg")
    os.mkfifo(root / "metadata.csv")  # nor are pipes waited for
    os.mkfifo(root / "a" / "pipe.png")
    source = whole(str(root))
    assert len(source) == 7
    number = next(n for n in range(len(source)) if source.name(n).endswith("huge.jpg"))
    with pytest.raises(ImageError, match=rf"huge\.jpg: 42,949,672,960 {TOO_LARGE}"):
        source.image(number)
    for name in ("huge.csv", "huge.jsonl"):
        with pytest.raises(DataError, match=r"42,949,672,960 bytes exceed the limit"):
            open_to_learn(str(sparse(tmp_path / name)))
    data = whole(table(tmp_path / "pq", cells(bytes=bytes(100_000))))
    monkeypatch.setattr("vitlab.data.sources.parquet.MAX_BYTES", 99_999)
    with pytest.raises(ImageError, match="row 0: 100,000 bytes exceed the limit of 99,999"):
        data.image(0)
    assert data.image(1).content() == png(1)


@pytest.mark.parametrize("name", ["x.parquet", "x.tar", "x.csv", "x.jsonl"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError):
        open_to_learn(str(tmp_path / name))
    if name in ("x.parquet", "x.tar"):
        with pytest.raises(DataError, match="not a regular file"):
            open_to_learn(str(tmp_path))


@pytest.mark.parametrize("path", ["/etc/passwd", "../photo.png", "away/000.png", "../../../x.png"])
def test_a_list_names_files_of_its_folder_only(tmp_path: Path, path: str) -> None:
    photo(1).save(tmp_path / "photo.png")
    photo(1).save(tmp_path.parent.parent / "x.png")
    photo_folder(tmp_path / "elsewhere", {"a": 1})
    data = listed(tmp_path / "list", path)
    (tmp_path / "list" / "away").symlink_to(tmp_path / "elsewhere" / "a")
    with pytest.raises(DataError) as refused:
        open_to_learn(data)
    assert str(refused.value) == (
        f"{data} names {path}, which is outside of {tmp_path / 'list'}: name the folder of the "
        "images with --images, or pass --allow-outside if you trust the list"
    )
    assert len(whole(data, allow_outside=True)) == 7


def test_paths_inside_of_a_folder_may_be_absolute_or_links(tmp_path: Path) -> None:
    folder = tmp_path / "list"
    data = listed(folder, str(folder / "a" / "000.png"), "b/../a/001.png", "link.png")
    (folder / "link.png").symlink_to(folder / "b" / "000.png")
    assert len(whole(data)) == 9
    (tmp_path / "here").symlink_to(folder)
    assert len(whole(str(tmp_path / "here" / "list.csv"))) == 9
    (outside := tmp_path / "lists").mkdir()
    (outside / "list.csv").write_text((folder / "list.csv").read_text())
    assert len(whole(str(outside / "list.csv"), images=str(folder))) == 9
    (tmp_path / "photos").mkdir()  # of class folders that are links
    for name in "ab":
        (tmp_path / "photos" / name).symlink_to(folder / name)
    (folder / "a" / "more").symlink_to(folder / "b")
    (folder / "b" / "ring").symlink_to(folder / "b")
    photos = str(tmp_path / "photos")
    assert len(whole(photos)) == len(open_images(photos, "none").every()) == 9


def test_inside(tmp_path: Path) -> None:
    inside = Inside((tmp_path,))
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    (tmp_path / "up").symlink_to("..")
    long = "x" * 300
    for path in ("a", "b/c", "b/../c", "missing/..", long, f"{long}/a"):
        assert inside.holds(tmp_path / path)
    for path in ("..", "up", "up/x", "ring", "ring/x", "there", "a/../back/x", "b/../../x", "/"):
        assert not inside.holds(tmp_path / path)
    assert not inside.holds(tmp_path / "a\0" / "b")
    assert not Inside((tmp_path / "ring",)).holds(tmp_path / "ring" / "x")
    assert not Inside(()).holds(tmp_path)
    assert Inside((), anywhere=True).holds(tmp_path)


def test_long_paths_and_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 of the 7 files listed in .* do not exist"):
        open_to_learn(listed(tmp_path / "list", "x" * 6000))
    file = tmp_path / "list" / "rows.jsonl"
    file.write_text('{"path": "a/000.png", "label": ' + "9" * 10_000 + "}")
    with pytest.raises(DataError, match="line 1 is not a JSON object"):
        open_to_learn(str(file))


PATHS = {
    "/dev/zero": "outside of", "/etc/passwd": "outside of", "../photo.png": "outside of",
    "missing.png": "no such file", "folder": "a folder, not a file",
    "pipe.png": "not a regular file", "huge.png": TOO_LARGE,
    "x" * 6000: "(?i)file name too long|outside of", "a\0b": "outside of|null",
    "": "no image in this row",
}  # fmt: skip


def test_a_cell_names_files_of_its_folder_only(tmp_path: Path) -> None:
    photo(1).save(tmp_path / "photo.png")
    images = [{"bytes": None, "path": path} for path in PATHS]
    data = whole(table(tmp_path / "pq", images, [0, 1] * 5))
    (tmp_path / "pq" / "folder").mkdir()
    os.mkfifo(tmp_path / "pq" / "pipe.png")
    sparse(tmp_path / "pq" / "huge.png")
    for number, words in enumerate(PATHS.values()):
        with pytest.raises(ImageError, match=words) as refused:
            data.image(number)
        assert str(refused.value).isprintable()


def test_files_that_cells_name(tmp_path: Path) -> None:
    """Relative to the Parquet files, or to the folder given; elsewhere with the option alone."""
    (tmp_path / "pq" / "in").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "pq" / "in" / "x.png").write_bytes(png(7))
    (tmp_path / "other" / "y.png").write_bytes(png(8))
    data = table(tmp_path / "pq", cells(bytes=None, path="in/x.png"))
    assert whole(data).image(0).content() == png(7)
    assert whole(str(tmp_path / "pq")).image(0).content() == png(7)
    assert pickle.loads(pickle.dumps(whole(data))).image(0).content() == png(7)
    outside = str(tmp_path / "other" / "y.png")
    data = table(tmp_path / "pq", cells(bytes=None, path=outside))
    assert whole(data, images=str(tmp_path / "other")).image(0).content() == png(8)
    assert whole(data, allow_outside=True).image(0).content() == png(8)
    with pytest.raises(ImageError, match=r"outside of .*pq: name the folder .* --allow-outside"):
        whole(data).image(0)


NOT_LABELS = "row 0 has no label, or one that is neither text nor a whole number"
REFUSED: dict[str, tuple[Any, str]] = {
    "fractions": ([0.5, 1.0] * 6, NOT_LABELS),
    "infinity": ([float("inf"), 1.0] * 6, NOT_LABELS),
    "records": ([{"a": 1}, {"a": 2}] * 6, NOT_LABELS),
    "bytes": ([b"a", b"b"] * 6, NOT_LABELS),
    "dates": ([date(2026, 1, 1), date(2026, 1, 2)] * 6, NOT_LABELS),
    "nulls": ([None] * 12, "has no labels: column label is empty"),
    "lists with a null": ([["a", None], ["b"]] * 6, NOT_LABELS),
    "lists of fractions": ([[0.5], [1.0]] * 6, NOT_LABELS),
    "lists of lists": ([[["a"]], [["b"]]] * 6, NOT_LABELS),
}


def test_labels_of_a_table_that_are_refused(tmp_path: Path) -> None:
    for kind, (values, message) in REFUSED.items():
        with pytest.raises(DataError, match=message) as refused:
            open_to_learn(table(tmp_path / kind, labels=values))
        assert str(refused.value).isprintable()


def test_labels_of_a_table(tmp_path: Path) -> None:
    for number, (labels, classes, values) in enumerate((
        ([10, 9] * 6, ("9", "10"), [1, 0] * 6),
        ([True, False] * 6, ("False", "True"), [1, 0] * 6),
        (pa.array(["b", "a"] * 6, pa.large_string()), ("a", "b"), [1, 0] * 6),
        ([["b", "a"], ["a"], []] * 4, ("a", "b"), [[1, 1], [1, 0], [0, 0]] * 4),
        ([[10, 9], [9]] * 6, ("9", "10"), [[1, 1], [1, 0]] * 6),
    )):  # fmt: skip
        found = whole(table(tmp_path / str(number), labels=labels))
        assert (found.classes, found.target.values.tolist()) == (classes, values)


def test_a_column_of_groups_is_not_split(tmp_path: Path) -> None:
    images = pa.array([{"bytes": png(n), "path": None} for n in range(40)])
    columns = {"image": images, "label": [0, 1] * 20, "patient": [n // 4 for n in range(40)]}
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    asked = Columns(group_column="patient")
    splits = open_to_learn(str(tmp_path / "all.parquet"), options=asked)
    sides = [{*part.group.tolist()} for part in (splits.train, splits.test)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 10
    assert len(splits.test) % 4 == 0
    with pytest.raises(DataError, match="no column 'doctor'"):
        open_to_learn(str(tmp_path / "all.parquet"), options=Columns(group_column="doctor"))


def test_cells_that_hold_no_images(tmp_path: Path) -> None:
    for kind in (pa.list_(pa.uint8()), pa.int64(), pa.struct([("x", pa.int8())])):
        kind = pa.struct([("bytes", kind), ("path", pa.string())])
        images = pa.array([{"bytes": None, "path": None}] * 12, kind)
        with pytest.raises(DataError, match=r"column 'image' contains no images|no image column"):
            open_to_learn(table(tmp_path / "pq", images))


def test_a_run_goes_on_with_the_permission(tmp_path: Path) -> None:
    """It is asked of whoever starts the process, and is no other recipe."""
    recipe = vitlab.recipe("digits", listed(tmp_path / "list"), steps=2, batch=4, **SMALL)
    run = vitlab.train(recipe, tmp_path / "run", host=Host(workers=0, effort=BRIEF))
    allowed = recipe.changed(allow_outside=True)
    again = vitlab.train(allowed, tmp_path / "run", resume=True, host=Host(workers=0, effort=BRIEF))
    assert again.metrics["accuracy"] == run.metrics["accuracy"]


def test_pictures_are_measured_before_they_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for file, message in (
        (tmp_path / "pipe.png", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (sparse(tmp_path / "huge.png"), TOO_LARGE),
        (tmp_path, "a folder, not a file"),
    ):
        with pytest.raises(ImageError, match=message):
            stored(file)
