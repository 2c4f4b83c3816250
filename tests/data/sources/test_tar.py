"""The members of tar files, and what is refused of damaged ones."""

import io
import itertools
import tarfile

import numpy as np
import pytest

from vitlab.data.sources import tar_shards as tar

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


@pytest.mark.parametrize("kind", FORMATS)
def test_members_are_those_that_python_finds(kind):
    names = NAMES if kind == "ustar" else [*NAMES, LONG]
    data = archive(kind, names)
    assert found(data) == theirs(data)
    assert [name for name, _ in found(data)] == names


def test_numbers_and_sizes_out_of_the_ordinary():
    def strange(info):
        info.uid, info.mtime = 2**40, 1.5  # binary in GNU archives, texts in pax ones
        info.pax_headers = {"comment": "size=7\n99 path=no"}
        return info

    for kind in ("gnu", "pax"):
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


def test_hostile_sizes():
    info = tarfile.TarInfo("a")
    for size in (b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777\0"):
        header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
        header[124:136] = size
        header[148:156] = b" " * 8
        header[148:156] = f"{sum(header):06o}\0 ".encode()
        assert refused(bytes(header) + bytes(1024)).startswith("damaged at byte ")
    first = tarfile.TarInfo("first").tobuf(tarfile.USTAR_FORMAT)
    info.type, info.size = tarfile.XHDTYPE, 2 * 2**20
    big = first + info.tobuf(tarfile.USTAR_FORMAT) + bytes(3 * 2**20)
    assert "headers of more than 1,048,576 bytes" in refused(big)


def test_sizes_below_zero_do_not_send_the_reader_back():
    """They made Python's own reader go round in circles (CVE-2025-8194)."""
    first = tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT)
    for kind, size in itertools.product((b"0", b"L", b"K", b"x", b"g", b"S"), (-512, -1024, -5000)):
        info = tarfile.TarInfo("a")
        info.type = kind
        header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        header[124:136] = (2**96 + size).to_bytes(12)
        header[148:156] = b" " * 8
        header[148:156] = f"{sum(header):06o}\0 ".encode()
        assert refused(first + bytes(header) + bytes(2048)).startswith("damaged at byte 512: ")


def test_headers_without_a_member_end():
    info = tarfile.TarInfo("a")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 5
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
