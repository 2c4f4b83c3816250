"""Zip archives, whose sizes are compared with the file's before anything is unpacked."""

import io
import struct
import zipfile
from pathlib import Path
from typing import IO

from vitlab.errors import WeightsError
from vitlab.units import storage
from vitlab.weights.sharded import HEADER

RATIO = 20  # weights hardly shrink; what is all zeros does, but is small
ALWAYS = 2**28  # bytes that any archive may hold
END, END64, LOCATOR = b"PK\5\6", b"PK\6\6", b"PK\6\7"  # of the records at the end
TAIL = 22 + 2**16  # bytes of the last record, with the longest comment


def check_sizes(path: Path, stream: IO[bytes]) -> None:
    """Refuse an archive that would take far more memory or time than its size suggests.

    Args:
        path: for messages
        stream: the file or a part of it, which need not be an archive

    Raises:
        WeightsError: its list of files is too long, its files overlap, or they unpack to too much.
    """
    size = stream.seek(0, io.SEEK_END)
    if (length := _directory(stream, size)) > HEADER:
        raise WeightsError(
            f"{path} is a zip archive whose list of files has {length:,} bytes; the limit is "
            f"{HEADER:,}"
        )
    found = []
    if zipfile.is_zipfile(stream):  # else it is something else, or cut short
        with zipfile.ZipFile(stream) as archive:
            found = archive.infolist()
    stream.seek(0)
    if sum(info.compress_size for info in found) > size:
        raise WeightsError(f"{path} is a zip archive whose files overlap: not weights")
    total = sum(info.file_size for info in found)
    if total > max(ALWAYS, RATIO * size):
        raise WeightsError(
            f"{path} is a zip archive of {storage(size)} that unpacks to {storage(total)}: not "
            "weights; if they are, save them again without compression"
        )


def _directory(stream: IO[bytes], size: int) -> int:
    """Return the bytes that an archive states for its list of files; 0 if it states none."""
    stream.seek(max(0, size - TAIL))
    tail = stream.read(TAIL)
    end = tail.rfind(END)
    if end < 0 or len(tail) < end + 22:
        return 0
    (length,) = struct.unpack_from("<L", tail, end + 12)
    if end < 20 or tail[end - 20 : end - 16] != LOCATOR:
        return int(length)
    (place,) = struct.unpack_from("<Q", tail, end - 12)
    stream.seek(min(place, size))
    record = stream.read(56)
    if record[:4] != END64 or len(record) < 56:
        return int(length)
    return max(int(length), int(struct.unpack_from("<Q", record, 40)[0]))
