"""Files of `torch.save`: tensors are compared with their checksums when they are read."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from counted import COUNTED_BYTES, bytes_read
from vitlab.errors import WeightsError
from vitlab.weights.containers.pickles import read_pickle

DAMAGED = "does not match its checksum; download it again"


def places(file: Path) -> dict[str, tuple[int, int]]:
    """Where the bytes of each member begin and end."""
    found = {}
    content = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            lengths = struct.unpack_from("<HH", content, info.header_offset + 26)
            start = info.header_offset + 30 + sum(lengths)
            found[info.filename.partition("/")[2]] = (start, start + info.file_size)
    return found


def flip(file: Path, place: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ 4]))


def read(file: Path) -> dict[str, Any]:
    return read_pickle(file, zipped=True).root


def several() -> dict[str, torch.Tensor]:
    """Tensors of one size, of one storage, of none, of other layouts in memory and types."""
    one = torch.randn(40, 30)
    alike = {f"alike {number}": torch.randn(16) for number in range(6)}
    return alike | {
        "one": one, "the same": one, "a part": one[3:9, 2:], "turned": one.T,
        "empty": torch.empty(0, 3), "scalar": torch.tensor(3.5), "whole": torch.arange(9),
        "half": torch.randn(5).half(), "brain": torch.randn(7).bfloat16(),
        "large": torch.randn(300, 100),
    }  # fmt: skip


def test_every_tensor_is_read_as_it_was_saved(tmp_path: Path) -> None:
    tensors = several()
    torch.save(tensors, tmp_path / "m.pth")
    stored = read(tmp_path / "m.pth")
    assert all(torch.equal(stored[name].read(), tensors[name]) for name in tensors)


def test_damage_of_any_member_is_found_before_its_numbers_are_used(tmp_path: Path) -> None:
    """At the first, a middle and the last byte of each; whatever is whole can be read."""
    tensors, file = several(), tmp_path / "m.pth"
    torch.save(tensors, file)
    refused_at_once, refused_when_read = set[str](), set[str]()
    for member, (start, end) in places(file).items():
        for place in {start, (start + end) // 2, end - 1} if end > start else ():
            flip(file, place)
            try:
                stored = read(file)
            except WeightsError as error:
                assert DAMAGED in str(error)
                assert member in str(error)
                refused_at_once.add(member)
            else:
                for name, own in tensors.items():
                    try:
                        assert torch.equal(stored[name].read(), own), (name, member)
                    except WeightsError as error:
                        assert f"m/{member} {DAMAGED}" in str(error)
                        refused_when_read.add(member)
            flip(file, place)
    members = {name for name, (start, end) in places(file).items() if end > start}
    assert refused_when_read == {name for name in members if name.startswith("data/")}
    assert refused_at_once == members - refused_when_read


def test_where_places_leave_a_doubt_all_is_compared_at_once(tmp_path: Path) -> None:
    """Of three members of one size only two are named: the file might begin in two places."""
    tensors = {name: torch.randn(64) for name in "abc"}
    torch.save(tensors, tmp_path / "whole.pth")
    torch.save({name: tensors[name] for name in "ab"}, tmp_path / "part.pth")
    file = tmp_path / "m.pth"
    with (
        zipfile.ZipFile(tmp_path / "whole.pth") as whole,
        zipfile.ZipFile(tmp_path / "part.pth") as part,
        zipfile.ZipFile(file, "w") as archive,
    ):
        archive.writestr("m/data.pkl", part.read("part/data.pkl"))
        for name in ("byteorder", "data/0", "data/1", "data/2", "version"):
            archive.writestr(f"m/{name}", whole.read(f"whole/{name}"))
    stored = read(file)
    assert all(torch.equal(stored[name].read(), tensors[name]) for name in "ab")
    for member in ("data/0", "data/1", "data/2"):
        flip(file, place := places(file)[member][0])
        with pytest.raises(WeightsError, match=f"m/{member} {DAMAGED}"):
            read(file)
        flip(file, place)


def test_compressed_tensors_are_refused_in_a_line(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(100)}, tmp_path / "m.pth")
    with (
        zipfile.ZipFile(tmp_path / "m.pth") as whole,
        zipfile.ZipFile(tmp_path / "small.pth", "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for info in whole.infolist():
            archive.writestr(info.filename, whole.read(info))
    with pytest.raises(WeightsError, match=r"data/0 is compressed, which"):
        read(tmp_path / "small.pth")


@COUNTED_BYTES
def test_a_file_is_described_without_reading_its_tensors(tmp_path: Path) -> None:
    torch.save({"a": torch.randn(1000, 1000), "b": torch.randn(1000, 1000)}, tmp_path / "m.pth")
    read(tmp_path / "m.pth")  # imports
    before = bytes_read()
    stored = read(tmp_path / "m.pth")
    assert stored["a"].shape == (1000, 1000)
    assert bytes_read() - before < 2**20  # of 8 MB
