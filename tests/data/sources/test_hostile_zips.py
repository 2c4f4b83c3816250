"""Hostile zips: one line, or damaged images; limits hold before the work."""

import random
import stat
import struct
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import call
from made_files import png
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError, ImageError

Writer = Callable[[zipfile.ZipFile], None]


def plain(archive: zipfile.ZipFile, classes: str = "ab", count: int = 4) -> None:
    """Eight images."""
    for kind in classes:
        for n in range(count):
            archive.writestr(f"{kind}/{n}.png", png(n))


def added(*members: tuple[str | zipfile.ZipInfo, bytes]) -> Writer:
    """Eight images and other members."""

    def write(archive: zipfile.ZipFile) -> None:
        plain(archive)
        for name, data in members:
            archive.writestr(name, data)

    return write


def info(name: str, mode: int = 0, **changed: int) -> zipfile.ZipInfo:
    """A member with other facts."""
    found = zipfile.ZipInfo(name)
    found.external_attr = mode << 16
    for key, value in changed.items():
        setattr(found, key, value)
    return found


def bomb(archive: zipfile.ZipFile) -> None:
    """A member of 250 MB of zeros."""
    plain(archive)
    zeros = info("a/zeros.png", compress_type=zipfile.ZIP_DEFLATED)
    with archive.open(zeros, "w") as stream:
        for _ in range(250):
            stream.write(bytes(1_000_000))


def deflated(archive: zipfile.ZipFile) -> None:
    """Compressed images."""
    for kind in "ab":
        for n in range(4):
            archive.writestr(f"{kind}/{n}.png", png(n), zipfile.ZIP_DEFLATED)


def more(archive: zipfile.ZipFile) -> None:
    """A member that unpacks to more than it says: its directory has been changed."""
    plain(archive)
    archive.writestr("a/9.png", bytes(100_000), zipfile.ZIP_DEFLATED)
    archive.filelist[-1].file_size = 99_999


def patched(find: bytes, put: bytes, count: int = -1) -> Callable[[bytes], bytes]:
    """Bytes with others in place of some."""

    def change(data: bytes) -> bytes:
        assert find in data
        return data.replace(find, put, count)

    return change


def at(place: int, put: bytes, mark: bytes = b"PK\1\2") -> Callable[[bytes], bytes]:
    """Bytes with others at a place of the first entry of the directory."""

    def change(data: bytes) -> bytes:
        start = data.index(mark) + place
        return data[:start] + put + data[start + len(put) :]

    return change


def doubled_directory(data: bytes) -> bytes:
    """Every entry of the directory twice: members share their bytes."""
    start, end = data.index(b"PK\1\2"), data.rindex(b"PK\5\6")
    directory = data[start:end].replace(b"a/", b"c/").replace(b"b/", b"d/") + data[start:end]
    tail = struct.pack("<4H2IH", 0, 0, 16, 16, len(directory), start, 0)
    return data[:start] + directory + b"PK\5\6" + tail


def many_members(data: bytes) -> bytes:
    """A directory of 2,100,000 entries of one member."""
    entry = b"PK\1\2" + bytes(42)
    tail = struct.pack("<4H2IH", 0, 0, 65535, 65535, 2_100_000 * len(entry), 0, 0)
    return b"".join([entry] * 2_100_000) + b"PK\5\6" + tail


def same(data: bytes) -> bytes:
    return data


link = stat.S_IFLNK | 0o777
REFUSED: dict[str, tuple[Writer, Callable[[bytes], bytes], str]] = {
    "empty file": (plain, lambda data: b"", "is no zip"),
    "text": (plain, lambda data: b"hello" * 100, "is no zip"),
    "no members": (lambda archive: None, same, "no class folders with images"),
    "cut off": (plain, lambda data: data[: len(data) // 2], "is no zip, is cut off"),
    "cut off in the directory": (plain, lambda data: data[:-40], "is no zip, is cut off"),
    "garbage after": (plain, lambda data: data + bytes(70_000), "is no zip"),
    "directory elsewhere": (plain, patched(b"PK\1\2", b"PK\1\3"), "is no zip"),
    "encrypted": (plain, at(8, b"\1\0"), "1 of 8 members are encrypted"),
    "Deflate64": (plain, at(10, b"\x09\0"), "compressed by Deflate64"),
    "bzip2": (plain, at(10, b"\x0c\0"), "compressed by bzip2"),
    "unknown method": (plain, at(10, b"\x63\0"), "compressed by method 99"),
    "another disk": (plain, at(34, b"\2\0"), "is one of several parts"),
    "overlapping members": (plain, doubled_directory, "its members overlap"),
    "a member behind the directory": (plain, at(42, b"\xff\xff\xff\x0f"), "its members overlap"),
    "a member of 4 GB": (plain, at(20, b"\xf0\xff\xff\xff"), "its members overlap"),
    "the same name twice": (added(("a/0.png", png(9))), same, "has two members named a/0.png"),
    "many members": (plain, many_members, "more than 2,000,000 members"),
    "name in no encoding": (
        added((info("ü/1.png"), b"")), patched(b"\xc3\xbc", b"\xff\xff"), "is no zip"
    ),
    "zips alone": (
        lambda archive: archive.writestr("train.zip", b"PK"), same, r"archives \(train.zip\)"
    ),
    "one class": (lambda archive: plain(archive, "a"), same, "only one class"),
    "classes and loose": (
        lambda archive: archive.writestr("1.png", png(1)), same, "are not in sub-folders"
    ),
}  # fmt: skip


def write(file: Path, writer: Writer, change: Callable[[bytes], bytes] = same) -> str:
    """A zip with changed bytes."""
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        writer(archive)
    file.write_bytes(change(file.read_bytes()))
    return str(file)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_a_line(tmp_path: Path, capsys, name: str) -> None:
    writer, change, said = REFUSED[name]
    file = write(tmp_path / "p.zip", writer, change)
    with pytest.raises(DataError, match=said) as caught:
        open_to_learn(file)
    assert "\n" not in str(caught.value)
    status, out, lines = call(capsys, "train", file)
    assert (status, out, lines.count("\n")) == (2, "", 2)  # the model, and the error
    assert list(tmp_path.iterdir()) == [tmp_path / "p.zip"]


LEFT_OUT = {
    "parent": (("../../x.png", png(20)), "lead out of it"),
    "parent inside": (("a/../../x.png", png(20)), "lead out of it"),
    "absolute": (("/tmp/x.png", png(20)), "lead out of it"),
    "drive": (("C:/x/y.png", png(20)), "lead out of it"),
    "link": ((info("a/link.png", link), b"/etc/passwd"), "links or devices"),
    "device": ((info("a/pipe.png", stat.S_IFIFO), b""), "links or devices"),
    "deep": (("a/" * 1000 + "x.png", png(20)), "in more than 64 folders"),
    "zip in it": (("a/more.zip", b"PK"), "1 with .zip"),
    "strange ending": (("a/x.\u202egpj", png(20)), ""),
    "the same name in capitals": (("a/0.PNG", png(20)), ""),
    "no name": (("./", b""), ""),
    "a file where a folder is": (("a", b""), ""),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_left_out(tmp_path: Path, name: str) -> None:
    member, said = LEFT_OUT[name]
    opened = open_images(write(tmp_path / "p.zip", added(member)))
    assert opened.unsplit.classes == ("a", "b")
    assert len(opened.unsplit) in (8, 9)
    assert said in "\n".join(opened.notes)
    assert list(tmp_path.iterdir()) == [tmp_path / "p.zip"]


DAMAGED: dict[str, tuple[Writer, Callable[[bytes], bytes], str]] = {
    "checksum": (plain, at(16, b"abcd"), "checksum"),
    "another size": (plain, at(24, b"\1\0\0\0"), "its size is not"),
    "a size of 4 GB": (plain, at(24, b"\xf0\xff\xff\xff"), "exceed the limit"),
    "header gone": (plain, at(0, b"PK\7\7", b"PK\3\4"), "another member in its place"),
    "another method": (plain, at(8, b"\x08\0", b"PK\3\4"), "contradicts the directory"),
    "no deflate": (deflated, at(60, bytes(40), b"PK\3\4"), "damaged"),
    "a long name in the header": (plain, at(26, b"\xff\xff", b"PK\3\4"), "cut off|checksum"),
    "zeros": (bomb, same, "are no image"),
    "more than it says": (more, same, "its size is not"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_images(tmp_path: Path, name: str) -> None:
    writer, change, said = DAMAGED[name]
    source = open_images(write(tmp_path / "p.zip", writer, change)).unsplit
    lines = []
    for index in range(len(source)):
        try:
            source.image(index)
        except ImageError as error:
            lines.append(str(error))
    assert len(lines) == 1, lines
    with pytest.raises(ImageError, match=said):
        raise ImageError(lines[0])


def test_changed_bytes(tmp_path: Path) -> None:
    """Whatever changes, a zip is refused, or its damaged images are."""
    whole = Path(write(tmp_path / "p.zip", deflated)).read_bytes()
    directory = whole.index(b"PK\1\2")
    generator = random.Random(1)
    outcomes = Counter[str]()
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(generator.choice([1, 1, 2, 4])):
            data[generator.randrange(directory, len(data))] = generator.choice([0, 1, 128, 255])
        (tmp_path / "p.zip").write_bytes(data)
        try:
            source = open_images(str(tmp_path / "p.zip"), "optional").every()
        except DataError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
            continue
        for index in range(len(source)):
            try:
                source.image(index)
            except ImageError:
                outcomes["damaged"] += 1
    assert min(outcomes["refused"], outcomes["damaged"]) > 100


def test_a_zip_that_changes_or_goes(tmp_path: Path) -> None:
    file = Path(write(tmp_path / "p.zip", plain))
    source = open_images(str(file)).unsplit
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ImageError, match=r"damaged|cut off"):
        source.image(7)
    file.unlink()
    with pytest.raises(ImageError, match="no such file"):
        source.image(7)
