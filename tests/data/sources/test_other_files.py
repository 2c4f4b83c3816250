"""Files that are not read, files of odd endings, and files that systems add."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import photo
from made_files import encoded, png, tarred
from places_opened import open_masks
from vitlab.data.exists import is_hub_data
from vitlab.data.open import open_images
from vitlab.data.settings import Columns
from vitlab.data.sources.file_tree import MOST_LOOKED_INTO
from vitlab.errors import DataError


def test_a_list_in_a_folder_is_named(tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    photo(1).save(root / "1.jpg")
    (root / "labels.csv").write_text("path,label\n1.jpg,cat\n")
    with pytest.raises(DataError, match=rf"or name a list of them as the data, such as {root}/lab"):
        open_images(str(root))
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        for file in root.iterdir():
            archive.write(file, file.name)
    with pytest.raises(DataError, match=r"or unpack it and name its list, such as labels\.csv"):
        open_images(str(tmp_path / "p.zip"))


def test_names_with_such_endings_are_no_data_sets_of_the_hub() -> None:
    for name in ("x.zip", "x.ndjson", "x.tar.gz", "x.7z", "x.jfif", "x.json", "x.csv"):
        assert not is_hub_data(f"user/{name}")
    assert is_hub_data("user/name")


def odd_folder(root: Path) -> Path:
    """Images by their content: 4 with usual endings, 6 with others; and 3 that are none."""
    for name in ("cat/1.jpg", "cat/2.jfif", "dog/3.JPEG", "dog/4.jpg_large", "cat/5", "cat/6.img",
                 "dog/7.1", "dog/8.cache", "dog/9.image", "dog/photo v1.2"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        photo(len(name)).save(root / name, "JPEG")
    (root / "cat" / "weights.bin").write_bytes(bytes(100))
    (root / "cat" / "text").write_text("BM is no bitmap here")
    (root / "dog" / "old.ppm").write_bytes(b"P6\n1 1\n255\nabc")
    return root


def test_images_by_their_content(tmp_path: Path) -> None:
    root = odd_folder(tmp_path / "a")
    opened = open_images(str(root))
    assert len(opened.unsplit) == 10
    said = "\n".join(opened.notes)
    assert f"6 files of {root} without a usual ending are images by content" in said
    assert "(1 with .bin, 1 with no ending)" in said
    assert "1 Netpbm image" in said
    pattern = open_images(f"{root}/*/*")
    assert len(pattern.unsplit) == 10
    assert any("6 files of" in note and "by content" in note for note in pattern.notes)
    assert any("skipped 3 files of" in note for note in pattern.notes)
    assert len(open_images(str(root), "none").every()) == 10
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(root, ".")
    shards = open_images(str(tmp_path / "a.tar"))
    assert len(shards.unsplit) == 10
    assert any("without a usual ending, by content" in note for note in shards.notes)


def test_few_files_are_looked_into(tmp_path: Path) -> None:
    for number in range(MOST_LOOKED_INTO + 20):
        (tmp_path / f"{number}.step").write_bytes(b"x")
    photo(1).save(tmp_path / "0.jpg")
    notes = open_images(str(tmp_path), "none").notes
    assert any("20 files of" in note and "were not looked into" in note for note in notes)


SYSTEM = (
    "@eaDir/a/1.jpg", "cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "cat/SYNOPHOTO_THUMB_B.jpg",
    "#recycle/cat/1.jpg", "dog/.@__thumb/1.jpg", "$RECYCLE.BIN/1.jpg", "__MACOSX/cat/._1.jpg",
    "cat/._1.jpg", "lost+found/1.jpg", "@Recycle/1.jpg", "dog/@tmp/1.jpg",
)  # fmt: skip


def test_thumbnails_of_a_drive_are_nowhere(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg", *SYSTEM):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        photo(len(name)).save(root / name)
    with tarfile.open(tmp_path / "p.tar", "w") as archive:
        archive.add(root, "p")
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        for file in root.rglob("*"):
            archive.write(file, file.relative_to(root))
    data = (str(root), f"{root}/*/*", f"{root}/*/*.jpg", f"{tmp_path}/p.tar", f"{tmp_path}/p.zip")
    for each in data:
        opened = open_images(each)
        assert (len(opened.every()), opened.unsplit.classes) == (4, ("cat", "dog")), each
    for each in (f"{root}/**/*.jpg", f"{root}/**", f"{root}/*/**/*.jpg"):
        assert len(open_images(each, "none").every()) == 4, each
    hidden = tmp_path / ".cache" / "@eaDir"  # where the user names such a folder it is meant
    (hidden / "cat").mkdir(parents=True)
    photo(1).save(hidden / "cat" / "1.jpg")
    assert len(open_images(f"{hidden}/*/*.jpg", "none").every()) == 1
    assert len(open_images(str(hidden), "none").every()) == 1


def test_thumbnails_of_a_drive_have_no_masks(tmp_path: Path) -> None:
    for name in ("images/1", "images/2", "images/@eaDir/1", "masks/1", "masks/2", "masks/@eaDir/1",
                 "@eaDir/images/1", "masks/._1", "images/._1"):  # fmt: skip
        file = tmp_path / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        values = np.arange(64, dtype=np.uint8).reshape(8, 8) % 2
        Image.fromarray(values + (len(name) if "images" in name else 0)).save(file)
    opened = open_masks(str(tmp_path))
    assert len(opened.every()) == 2
    assert not [note for note in opened.notes if "without a mask" in note]


def test_a_tar_of_class_folders(tmp_path: Path) -> None:
    def write(name: str, *paths: str) -> str:
        members = [(path, png(number)) for number, path in enumerate(paths)]
        (tmp_path / name).write_bytes(tarred(*members))
        return str(tmp_path / name)

    data = write("a.tar", *(f"photos/{kind}/{n}.png" for kind in ("cat", "dog") for n in range(4)))
    opened = open_images(data)
    assert opened.unsplit.classes == ("cat", "dog")
    assert opened.unsplit.target.values.tolist() == [0] * 4 + [1] * 4
    assert opened.unsplit.image(5).content() == png(5)
    assert any("the folder of an image is its label" in note for note in opened.notes)
    splits = [f"{s}/{k}/{n}.png" for s in ("train", "val") for k in ("cat", "dog") for n in "12"]
    parts = open_images(write("b.tar", *splits)).parts
    assert {name: len(part) for name, part in parts.items()} == {"train": 4, "validation": 4}
    outer = open_images(data, columns=Columns(class_folder="inner"))
    assert outer.unsplit.classes == ("cat", "dog")
    for paths in (("1.png", "2.png"), ("00000/1.png", "00001/2.png"), ("photos/1.png", "photos/2")):
        with pytest.raises(DataError, match=r"has no label: put a \.cls or \.txt"):
            open_images(write("c.tar", *paths))
        assert open_images(str(tmp_path / "c.tar"), "optional").lacks
    with tarfile.open(tmp_path / "d.tar", "w") as archive:  # what lies beside an image is none
        for name, content in (("1.jpg", encoded(photo(1))), ("1.seg", png(2)), ("2", png(3))):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert len(open_images(str(tmp_path / "d.tar"), "none").every()) == 2
