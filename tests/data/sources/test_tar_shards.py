"""WebDataset shards as a source."""

import importlib.util
import io
import itertools
import json
import os
import shutil
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pytest

from made_files import png, tarred
from vitlab.data.holdout import fingerprint
from vitlab.data.labels import UnlabeledError
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn, split_opened
from vitlab.data.sources import remote
from vitlab.data.sources import tar_shards as tar
from vitlab.data.sources.tar_shards import index_shard
from vitlab.errors import DataError


def write(file: Path, *members: tuple[str, bytes]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(tarred(*members))
    return file


def samples(first: int, count: int, kind: str = "cls") -> list[tuple[str, bytes]]:
    members = []
    for i in range(first, first + count):
        label = str(i % 3) if kind == "cls" else json.dumps({"label": i % 3})
        members += [(f"{i:05d}.png", png(i, tint=i % 3)), (f"{i:05d}.{kind}", label.encode())]
    return members


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for shard in range(3):
        write(tmp_path / f"photos-{shard:03d}.tar", *samples(6 * shard, 6))
    return tmp_path


@pytest.mark.parametrize(
    "data", ["photos-{000..002}.tar", "photos-*.tar", "", "photos-00{0,1,2}.tar"]
)
def test_globs_braces_and_folders(three: Path, data: str) -> None:
    splits = open_to_learn(str(three / data))
    assert splits.classes == ("0", "1", "2")
    whole = splits.whole
    assert whole.target.values.tolist() == [0, 1, 2] * 6
    assert [whole.image(i).content() for i in range(18)] == [png(i, tint=i % 3) for i in range(18)]
    assert whole.name(7) == f"{three}/photos-001.tar 00007"


def test_other_label_members_and_splits_by_name(tmp_path: Path) -> None:
    for kind, words in (("json", ("0", "1", "2")), ("txt", ("cat", "dog", "cat"))):
        members = samples(0, 6, kind)
        if kind == "txt":
            own = {n: words[int(n[4]) % 3].encode() for n, _ in members if n.endswith("txt")}
            members = [(n, own.get(n, content)) for n, content in members]
        write(tmp_path / kind / "x-train-0.tar", *members)
        write(tmp_path / kind / "val" / "0.tar", *members[:4])
        splits = open_to_learn(str(tmp_path / kind / "{x-train-0,val/0}.tar"))
        assert (len(splits.train), len(splits.test), splits.whole) == (6, 2, None)
        assert splits.classes == tuple(sorted({*words}))


def test_class_names_beside_the_shards(three: Path) -> None:
    (three / "classes.txt").write_text("rot\ngrün\nblau\nnie\n")
    splits = open_to_learn(str(three))
    assert splits.classes == ("rot", "grün", "blau", "nie")
    moved = split_opened(
        open_images(str(three), classes=("blau", "rot", "grün"))
    ).train.target.values
    assert moved.tolist() == [(label + 1) % 3 for label in splits.train.target.values.tolist()]


def test_several_labels(tmp_path: Path) -> None:
    members = [(f"{i}.png", png(i)) for i in range(4)]
    rows = [["a"], ["b", "a"], [], ["b"]]
    members += [(f"{i}.json", json.dumps({"labels": row}).encode()) for i, row in enumerate(rows)]
    whole = open_to_learn(str(write(tmp_path / "x.tar", *members))).whole
    assert whole.target.values.tolist() == [[1, 0], [1, 1], [0, 0], [0, 1]]


def test_the_index_is_kept_until_the_shard_changes(three, monkeypatch) -> None:
    place = three / "photos-000.tar"
    first, state = index_shard(str(place)), place.stat()
    cached = list(Path(os.environ["VITLAB_CACHE"]).rglob("*.json"))
    assert len(cached) == 1
    place.write_bytes(
        place.read_bytes().replace(b"00000.", b"a0000.", 1).replace(b"00000.", b"a0000.", 1)
    )
    os.utime(place, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert index_shard(str(place)) == first  # as it was: what tells of a change is the same
    cached[0].write_text(cached[0].read_text()[:-30])  # damaged: scanned again, to find no header
    with pytest.raises(DataError, match="damaged at byte 0: not a tar file"):
        index_shard(str(place))
    write(place, *samples(0, 2))
    assert len(index_shard(str(place)).keys) == 2
    write(place, *samples(0, 2), ("9.odd", b"x"))
    assert len(index_shard(str(place)).keys) == 2
    monkeypatch.setattr(tar, "SUFFIXES", {".png", ".odd"})  # a package that reads more
    assert len(index_shard(str(place)).keys) == 3
    monkeypatch.setattr(tar, "SUFFIXES", {".png"})
    monkeypatch.setenv("VITLAB_CACHE", "/proc/nowhere")  # cannot be written: no matter
    assert len(index_shard(str(place)).keys) == 2


def test_shards_elsewhere(three: Path) -> None:
    memory = fsspec.filesystem("memory")
    for file in three.glob("*.tar"):
        memory.pipe(f"/bucket/{file.name}", file.read_bytes())
    memory.pipe("/bucket/classes.txt", b"x\ny\nz\n")
    for data in ("memory://bucket/photos-{000..002}.tar", "memory://bucket/photos-*.tar"):
        splits = open_to_learn(data)
        assert splits.classes == ("x", "y", "z")
        assert fingerprint(splits.whole) is not None
        assert splits.whole.image(17).content() == png(17, tint=2)
    memory.rm("/bucket/photos-001.tar")
    with pytest.raises(ValueError, match=r"cannot read memory://bucket/photos-001\.tar: no such f"):
        open_to_learn("memory://bucket/photos-{000..002}.tar")


def message(data: object) -> str:
    with pytest.raises(ValueError) as caught:
        open_to_learn(str(data))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_shards_in_one_line(tmp_path: Path) -> None:
    good = samples(0, 6)
    file = tmp_path / "a.tar"
    for members, words in (
        ([("x.cls", b"1")], "a.tar contains no images"),
        ([*good, good[0]], "has two images named '00000'"),
        ([*good, good[1]], "has 00000.cls twice"),
        ([*good, ("00000.jpg", good[0][1])], "has two images named '00000'"),
        ([("1.png", b""), ("1.json", b"{")], "1.json is not UTF-8 text, or not JSON"),
        ([("1.png", b""), ("1.json", b'{"label": {}}')], "neither text nor a whole number"),
        (good[:2], "only one class"),
        ([*good, ("x.cls", b"1" * (2**20 + 1))], "x.cls has 1,048,577 bytes: not a label"),
    ):
        assert words in message(write(file, *members))
    write(file, *good)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    assert "a.tar is damaged at byte " in message(file)
    file.write_bytes(b"\x1f\x8b" + data)
    assert "a.tar is damaged at byte 0: not a tar file" in message(file)
    assert "cannot read" in message(tmp_path / "b-{0..3}.tar")
    assert "no such file: " in message(tmp_path / "b-*.tar")
    (tmp_path / "b-1.text").touch()
    assert "no images among the 1 files of " in message(tmp_path / "b-*.text")
    assert "expands to" in message(tmp_path / "b-{0..999999}.tar")


def test_a_shard_that_shrinks_later_gives_bad_images(three: Path) -> None:
    source = open_to_learn(str(three)).whole
    (three / "photos-002.tar").write_bytes(b"")
    shutil.rmtree(os.environ["VITLAB_CACHE"])
    with pytest.raises(ValueError, match="00017: the shard is shorter than when it was indexed"):
        source.image(17).content()
    (three / "photos-002.tar").unlink()
    with pytest.raises(ValueError, match="00017: no such file"):
        source.image(17).content()


def test_protocols(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Protocol not known: nope" in message("nope://x/a.tar")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for protocol, package in remote.PACKAGES.items():
        assert message(f"{protocol}://b/a.tar") == (
            f'{protocol}:// needs the package {package}: pip install "vitlab[remote]"'
        )
    assert not remote.is_url("pipe:cat a.tar")  # a file of that name, and no command
    assert "cannot read pipe:cat a.tar" in message("pipe:cat a.tar")


def test_braces() -> None:
    for pattern, names in (
        ("a-{08..11}.tar", "a-08.tar a-09.tar a-10.tar a-11.tar"), ("{8..10}", "8 9 10"),
        ("{0..2}{x,y}", "0x 0y 1x 1y 2x 2y"), ("a{b}c", "a{b}c"), ("plain", "plain"),
    ):  # fmt: skip
        assert remote.braces(pattern) == names.split()


def test_shards_without_labels(tmp_path: Path) -> None:
    plain = str(write(tmp_path / "plain.tar", ("a.png", png(1)), ("b.png", png(2)), ("b.txt", b"")))
    half = str(write(tmp_path / "half.tar", ("a.png", png(1)), *samples(0, 1)))
    for _ in range(2):  # the second time from the cache
        found = open_images(str(tmp_path / "{plain,half}.tar"), "none").every()
        assert [found.name(n) for n in range(4)] == [
            f"{plain} a", f"{plain} b", f"{half} a", f"{half} 00000",
        ]  # fmt: skip
        assert found.image(1).content() == png(2)
        assert found.image(3).content() == png(0)
        assert found.classes == ()
        assert len(found.target) == 4
        with pytest.raises(UnlabeledError, match=r"plain\.tar a has no label: put a \.cls"):
            open_to_learn(plain)
        with pytest.raises(DataError, match=r"left out 1 .*half\.tar a has no label") as caught:
            open_to_learn(half)
        assert not isinstance(caught.value, UnlabeledError)


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
NAMES = ["a.jpg", "ordner/ä ö.cls", "deep/" * 12 + "x" * 60 + ".jpg", "empty.txt"]
LONG = "y" * 180 + "/" + "z" * 200 + ".png"


def archive(kind: str, names: list[str], change=lambda info: info) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=FORMATS[kind]) as file:
        for number, name in enumerate(names):
            content = b"" if name.startswith("empty") else bytes([number]) * (300 * number + 1)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(change(info), io.BytesIO(content))
    return stream.getvalue()


def found(data: bytes) -> list[tuple[str, bytes]]:
    list_ = tar.members(tar.HeaderReader(lambda at, count: data[at : at + count], len(data)))
    return [(each.name, data[each.offset_data :][: each.size]) for each in list_]


def theirs(data: bytes) -> list[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        return [(each.name, file.extractfile(each).read()) for each in file if each.isreg()]


def test_members_are_those_that_python_finds():
    def strange(info):
        info.uid, info.mtime = 2**40, 1.5  # binary in GNU archives, texts in pax ones
        info.pax_headers = {"comment": "size=7\n99 path=no"}
        return info

    for kind in FORMATS:
        names = NAMES if kind == "ustar" else [*NAMES, LONG]
        data = archive(kind, names)
        assert found(data) == theirs(data)
        assert [name for name, _ in found(data)] == names
        if kind != "ustar":
            data = archive(kind, NAMES, strange)
            assert found(data) == theirs(data)
    large = tarfile.TarInfo("large")
    large.size = 9 * 2**30
    whole = {0: large.tobuf(tarfile.GNU_FORMAT), 512 + large.size: bytes(512)}
    reader = tar.HeaderReader(lambda at, count: whole.get(at, b"\0"), 1024 + large.size)
    members = [(each.name, each.offset_data, each.size) for each in tar.members(reader)]
    assert members == [("large", 512, 9 * 2**30)]


def test_links_folders_and_devices_are_passed_over():
    kinds = (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        for kind in kinds:
            info = tarfile.TarInfo("../../etc/passwd")
            info.type, info.linkname = kind, "/etc/passwd"
            file.addfile(info)
        file.addfile(tarfile.TarInfo("real.txt"))
    assert found(stream.getvalue()) == [("real.txt", b"")]


def refused(data: bytes) -> str:
    with pytest.raises(tar.DamagedError) as caught:
        found(data)
    return str(caught.value)


def test_damage_is_reported_with_its_offset():
    data = archive("ustar", ["a.jpg", "b.jpg", "c.jpg"])
    end = 512 * 2 + 512 * 2 + 512 * 3
    assert "damaged at byte 0: not a tar file" in refused(b"")
    assert "damaged at byte 0: not a tar file" in refused(b"\xff\xd8" * 600)
    assert f"damaged at byte {end:,}: the archive is cut off" in refused(data[:end])
    assert f"damaged at byte {end - 1:,}: unexpected end of data" in refused(data[: end - 1000])
    broken = bytearray(data)
    broken[1024 + 5] ^= 1  # the second header: Python's reader stops here in silence
    assert "damaged at byte 1,024: not a tar header" in refused(bytes(broken))
    assert len(theirs(bytes(broken))) == 1


def sized(size: bytes, kind: bytes = b"0") -> bytes:
    """The header of a member that says it has this size."""
    info = tarfile.TarInfo("a")
    info.type = kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header)


def test_hostile_sizes_and_headers():
    """Sizes below zero made Python's own reader go round in circles (CVE-2025-8194)."""
    first = tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT)
    for size in (b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777\0"):
        assert refused(sized(size) + bytes(1024)).startswith("damaged at byte ")
    for kind, size in itertools.product((b"0", b"L", b"K", b"x", b"g", b"S"), (-512, -1024, -5000)):
        negative = sized((2**96 + size).to_bytes(12), kind)
        assert refused(first + negative + bytes(2048)).startswith("damaged at byte 512: ")
    info = tarfile.TarInfo("a")
    info.type, info.size = tarfile.XHDTYPE, 2 * 2**20
    big = first + info.tobuf(tarfile.USTAR_FORMAT) + bytes(3 * 2**20)
    assert "headers of more than 1,048,576 bytes" in refused(big)
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 5  # headers without a member
    chain = (info.tobuf(tarfile.GNU_FORMAT) + b"abcd".ljust(512, b"\0")) * 5000
    assert refused(chain + bytes(1024)).startswith("damaged at byte ")


def test_fuzzed_archives_end_or_are_damaged():
    generator = np.random.default_rng(3)
    for kind in FORMATS:
        data = archive(kind, NAMES)
        for _ in range(200):
            broken = bytearray(data)
            for place in generator.integers(0, len(data), 4):
                broken[place] = generator.integers(256)
            try:
                found(bytes(broken[: generator.integers(len(data) + 1)]))
            except tar.DamagedError as error:
                assert "damaged at byte" in str(error)
