"""Hostile zips: one line, or damaged images; limits hold before the work."""

import random
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from made_files import png
from made_zips import Writer, added, at, info, plain, same, write
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError, ImageError


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


link = stat.S_IFLNK | 0o777


def many_members(data: bytes) -> bytes:
    """A directory of 2,100,000 entries of one member."""
    entry = b"PK\1\2" + bytes(42)
    tail = struct.pack("<4H2IH", 0, 0, 65535, 65535, 2_100_000 * len(entry), 0, 0)
    return b"".join([entry] * 2_100_000) + b"PK\5\6" + tail


def test_many_members_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than 2,000,000 members"):
        open_to_learn(write(tmp_path / "p.zip", plain, many_members))


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
