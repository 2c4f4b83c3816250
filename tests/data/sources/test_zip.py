"""Zips: the same images, labels, splits and lines as the folder."""

import multiprocessing
import pickle
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from conftest import call, photo, photo_folder
from made_files import png
from vitlab.data.exists import is_hub_data
from vitlab.data.identities import identities
from vitlab.data.images import Images
from vitlab.data.loading.loader import in_chunks
from vitlab.data.open import Opened, open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError
from vitlab.places import exists


def zip_of(folder: Path, file: Path | None = None, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip of what is in a folder."""
    file = file or folder.with_suffix(".zip")
    with zipfile.ZipFile(file, "w", method) as archive:
        for each in sorted(folder.rglob("*")):
            archive.write(each, each.relative_to(folder))
    return file


def facts(opened: Opened, place: Path) -> list[object]:
    """All that was opened, with paths from the place."""
    said = [note.replace(str(place), "X") for note in opened.notes]
    found: list[object] = [said, opened.lacks.replace(str(place), "X")]
    sources = dict(opened.parts) | ({"loose": opened.loose} if opened.loose is not None else {})
    for split, source in sources.items():
        names = [source.name(n).replace(str(place), "X") for n in range(len(source))]
        contents = [source.image(n).content() for n in range(len(source))]
        labels = [[*map(int, source.target.classes_of(n))] for n in range(len(source))]
        found.append([split, source.classes, names, contents, labels])
    return found


def tree(root: Path, names: str) -> Path:
    """Files of these names: images by their ending, else empty."""
    for number, name in enumerate(names.split(", ")):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith((".png", ".jpg", ".odd")):
            photo(number).save(file, "PNG" if name.endswith(".png") else "JPEG")
        else:
            file.write_text("")
    return root


TREES = {
    "classes": "cat/1.jpg, cat/2.png, dog/1.jpg, dog/3.jpg, dog/notes.txt, empty/x.txt, a.jpg",
    "splits": "train/cat/1.jpg, train/dog/1.jpg, val/cat/2.jpg, other/1.jpg",
    "one folder around all": "p/cat/1.jpg, p/dog/1.jpg, readme.md",
    "one folder around splits": "p/train/cat/1.jpg, p/train/dog/1.jpg, p/test/dog/2.jpg",
    "sites": "siteA/cat/1.jpg, siteA/dog/2.jpg, siteB/cat/3.jpg",
    "photographs": "1.jpg, more/2.jpg, more/deep/3.jpg",
    "splits of photographs": "train/1.jpg, train/2.jpg, test/3.jpg",
    "system files": "cat/1.jpg, dog/2.jpg, @eaDir/1.jpg, cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg, "
    "__MACOSX/cat/._1.jpg, cat/.hidden.jpg, cat/Thumbs.db",
    "endings": "cat/1.odd, cat/2.jpg, dog/3, dog/4.jpg, dog/5.xyz, dog/6.heif2, dog/7.mp3",
    "names": "Café/1.jpg, 日本/2.jpg, a b/3.jpg, c'd/4.jpg",
    "look-alikes": "Cafe\u0301/1.jpg, Caf\xe9/2.jpg, tea/3.jpg",
    "order": "a/b/1.jpg, a-b/1.jpg, a b/1.jpg, a.b/c/1.jpg, A/1.jpg, a/1.jpg",
    "splits inside": "cat/train/1.jpg, cat/test/2.jpg, dog/train/3.jpg",
    "no images": "a/x.txt, b/y.bin",
    "nothing": "x.txt",
}


@pytest.mark.parametrize("name", TREES)
def test_a_zip_is_as_its_folder(tmp_path: Path, name: str) -> None:
    folder = tree(tmp_path / "photos", TREES[name])
    file = zip_of(folder)
    for wanted in ("label", "optional", "none"):
        outcomes = []
        for place in (folder, file):
            try:
                outcomes.append(facts(open_images(str(place), wanted), place))
            except DataError as error:
                outcomes.append([str(error).replace(str(place), "X")])
        assert outcomes[0] == outcomes[1]


def test_files_of_labels_in_a_zip(tmp_path: Path) -> None:
    folder = tree(tmp_path / "robo", "train/1.jpg, train/2.jpg, valid/3.jpg, valid/4.jpg")
    for split, own in (("train", "12"), ("valid", "34")):
        rows = [f"{n}.jpg, {k}, {1 - k}" for k, n in enumerate(own)]
        text = "\n".join(["filename, cat, dog", *rows])
        (folder / split / "_classes.csv").write_text(text)
    assert facts(open_images(str(folder)), folder) == (
        facts(open_images(str(zip_of(folder))), folder.with_suffix(".zip"))
    )
    folder = tree(tmp_path / "fifty", "data/1.jpg, data/2.jpg")
    (folder / "labels.json").write_text('{"classes": ["a", "b"], "labels": {"1": 0, "2": 1}}')
    assert facts(open_images(str(folder)), folder) == (
        facts(open_images(str(zip_of(folder))), folder.with_suffix(".zip"))
    )
    (folder / "metadata.csv").write_text("file_name,label\ndata/1.jpg,x\ndata/2.jpg,y\n")
    with pytest.raises(DataError, match=r"metadata\.csv, which is not read in a zip: unpack it"):
        open_images(str(zip_of(folder)))
    assert len(open_images(str(zip_of(folder)), "none").every()) == 2


def test_holding_out_and_identities_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = photo_folder(tmp_path / "p", {"a": 20, "b": 20})
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        splits = [open_to_learn(str(place)) for place in (folder, zip_of(folder, method=method))]
        ours, theirs = (each.test for each in splits)
        assert np.array_equal(identities(ours), identities(theirs))
        assert np.array_equal(ours.rows, theirs.rows)


def _checksums(source: Images, indices: range) -> list[int]:
    return [zlib.crc32(source.image(index).content()) for index in indices]


def _checksums_of_pickled(data: bytes) -> list[int]:
    source = pickle.loads(data)
    return _checksums(source, range(len(source)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_their_own(tmp_path: Path, method: str) -> None:
    file = zip_of(photo_folder(tmp_path / "p", {"a": 12, "b": 12}))
    whole = open_images(str(file)).unsplit
    expected = _checksums(whole, range(len(whole)))
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(_checksums_of_pickled, [pickle.dumps(whole)] * 2) == [expected] * 2
    found = [each for part in in_chunks(whole, _checksums, 5, 2) for each in part]
    assert found == expected
    assert len(pickle.dumps(whole)) < 4000


def test_commands_take_a_zip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = zip_of(photo_folder(tmp_path / "p", {"a": 12, "b": 12}))
    words = ["--model", "ViT(width=16,depth=1,heads=2,mlp=32)/8", "--image-size", "16", "--batch"]
    run = str(tmp_path / "run")
    status, _, said = call(capsys, "train", str(file), *words, "4", "--steps", "2", "--workers",
                           "2", "--out", run)  # fmt: skip
    assert status == 0, said
    assert call(capsys, "evaluate", run, str(file), "--json")[0] == 0
    status, out, said = call(capsys, "predict", run, str(file), "--json")
    assert (status, out.count(".png")) == (0, 24), said
    status, _, said = call(capsys, "prepare", str(file), str(tmp_path / "copy"), "--side", "16")
    assert status == 0, said
    shutil.rmtree(tmp_path / "p")
    assert not is_hub_data("user/photos.zip")
    assert not exists(str(tmp_path / "p"))
    status, _, said = call(capsys, "train", "user/photos.zip")
    assert status == 2
    assert "no such file or folder: user/photos.zip" in said


def test_other_programs_write_zips(tmp_path: Path) -> None:
    images = {f"{kind}\\{n}.png": png(n) for kind in "ab" for n in range(4)}
    windows = tmp_path / "windows.zip"
    with zipfile.ZipFile(windows, "w") as archive:
        for name, data in images.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    assert open_images(str(windows)).unsplit.classes == ("a", "b")
    for name, word in (("utf-8.zip", "Café".encode()), ("dos.zip", "Café".encode("cp437"))):
        _unflagged(tmp_path / name, [word + b"/%d.png" % n for n in range(4)] + [b"tea/1.png"])
        opened = open_images(str(tmp_path / name))
        assert opened.unsplit.classes == ("Café", "tea")
        assert ("MS-DOS" in "".join(opened.notes)) == (name == "dos.zip")
    with zipfile.ZipFile(tmp_path / "big.zip", "w", allowZip64=True) as archive:
        for name, data in images.items():
            with archive.open(name.replace("\\", "/"), "w", force_zip64=True) as stream:
                stream.write(data)
    assert len(open_images(str(tmp_path / "big.zip")).unsplit) == 8
    before = (tmp_path / "big.zip").read_bytes()
    (tmp_path / "self.zip").write_bytes(b"#!/bin/sh\nexit\n" + before)  # unpacks itself
    whole = open_images(str(tmp_path / "self.zip")).unsplit
    assert {whole.image(n).content() for n in range(8)} == {*images.values()}


def _unflagged(file: Path, names: list[bytes]) -> None:
    """Write a zip as programs do that know no UTF-8 flag: names as they are."""
    directory = b""
    with file.open("wb") as stream:
        for number, name in enumerate(names):
            data = png(number)
            size = len(data)
            head = struct.pack(
                "<5H3I2H", 20, 0, 0, 0, 0, zlib.crc32(data), size, size, len(name), 0
            )
            place = struct.pack("<3H2I", 0, 0, 0, 0, stream.tell())
            directory += b"PK\1\2\x14\0" + head + place + name
            stream.write(b"PK\3\4" + head + name + data)
        count = len(names)
        end = struct.pack("<4H2IH", 0, 0, count, count, len(directory), stream.tell(), 0)
        stream.write(directory + b"PK\5\6" + end)
