"""Checksums of the members of a `torch.save` zip: each tensor's is compared when it is read.

PyTorch maps such a file into memory and compares nothing. A file of 400 MB takes ten times as long
to read as to map, and often most of it is an optimizer's state, which nobody asks for.
"""

import mmap
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from vitlab.errors import WeightsError

LOCAL = 30  # bytes of the header before a member, without its name and what follows that
MOST = 100  # places that are tried
PIECE = 2**20  # bytes that are read at once


class Members:
    """The members of an archive that hold tensors, of which none has been compared yet."""

    def __init__(self, path: Path) -> None:
        """Compare all other members.

        Raises:
            WeightsError: one is damaged, or compressed, which cannot be mapped.
        """
        self.path = path
        self.start = 0
        self.done = set[int]()  # where members lie that were compared
        self.infos = dict[int, zipfile.ZipInfo]()  # by the place in the file where each begins
        with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
            for info in archive.infolist():
                if "/data/" in info.filename:
                    if info.compress_type != zipfile.ZIP_STORED:
                        raise WeightsError(
                            f"{path}: {info.filename} is compressed, which torch.save never does: "
                            "unpack the archive and zip it again without compression (zip -0)"
                        )
                    stream.seek(info.header_offset)
                    header = stream.read(LOCAL)
                    lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
                    self.infos[info.header_offset + LOCAL + sum(lengths)] = info
                else:
                    self._compare(_pieces(archive, info), info)

    def place(self, tensors: Iterable[Tensor]) -> None:
        """Find where the file begins in memory, by the places of all tensors in it.

        Each begins where a member does. Where that leaves more than one answer, which it does not
        in what `torch.save` writes, all members are compared now.

        Raises:
            WeightsError: one of them is damaged.
        """
        sizes = dict[int, int]()
        for storage in (each.untyped_storage() for each in tensors):
            if storage.nbytes() and storage.data_ptr():
                sizes[storage.data_ptr()] = storage.nbytes()
        if not sizes:
            return
        first = min(sizes)
        last = max(sizes)
        starts = [first - each for each in self.infos if each + last - first in self.infos]
        fitting = [each for each in starts[:MOST] if self._fit(sizes, each)]
        if len(fitting) == 1 and len(starts) <= MOST:
            self.start = fitting[0]
            return
        with zipfile.ZipFile(self.path) as archive:
            for place, info in self.infos.items():
                self._compare(_pieces(archive, info), info)
                self.done.add(place)

    def _fit(self, sizes: dict[int, int], start: int) -> bool:
        """Whether each storage has a member that is large enough, if the file begins there."""
        infos = ((self.infos.get(place - start), size) for place, size in sizes.items())
        return all(info is not None and size <= info.file_size for info, size in infos)

    def check_tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor whose member matches its checksum, which is compared once.

        Raises:
            WeightsError: it does not match.
        """
        place = tensor.untyped_storage().data_ptr() - self.start
        info = self.infos.get(place)
        if info is not None and place not in self.done:
            with (
                self.path.open("rb") as stream,
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as whole,
                memoryview(whole) as content,
                content[place : place + info.file_size] as own,
            ):
                self._compare([own], info)
            self.done.add(place)
        return tensor

    def _compare(self, pieces: Iterable[bytes | memoryview], info: zipfile.ZipInfo) -> None:
        """Compare a member's bytes with its checksum."""
        found = 0
        with suppress(zipfile.BadZipFile):  # which an archive says at the end of a member
            for piece in pieces:
                found = zlib.crc32(piece, found)
            if found == info.CRC:
                return
        raise WeightsError(
            f"{self.path}: {info.filename} does not match its checksum; download it again"
        )


def _pieces(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield a member's bytes."""
    with archive.open(info) as stream:
        while piece := stream.read(PIECE):
            yield piece
