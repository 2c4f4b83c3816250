"""Other people's data: sizes are known before anything is read, and paths stay inside."""

import os
import pickle
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
    data = whole(table(tmp_path / "pq", cells(bytes=bytes(100_000))))
    monkeypatch.setattr("vitlab.data.sources.parquet.MAX_BYTES", 99_999)
    with pytest.raises(ImageError, match="row 0: 100,000 bytes exceed the limit of 99,999"):
        data.image(0)
    assert data.image(1).content() == png(1)


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
