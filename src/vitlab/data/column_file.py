"""Memory-mapped file of columns: arrays by name, which any number of processes share.

A file has a line in JSON that names its columns, and the columns, each aligned. A checksum shows
damage.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.places import note_cache_file, write_cache_file

VERSION = 1
ALIGNED = 64  # bytes
LONGEST_HEAD = 2**16  # bytes of the first line
Column = NDArray[Any]


def write_columns(file: Path, columns: Mapping[str, Column]) -> bool:
    """Write a file of columns, unless the disk refuses; return whether it is there.

    Args:
        file: to write, or to replace
        columns: arrays of one dimension
    """
    arrays = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    checksum = 0
    for array in arrays.values():
        checksum = zlib.crc32(array.data, checksum)
    about = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    head = json.dumps({"version": VERSION, "columns": about, "checksum": checksum})
    pieces: list[bytes | memoryview] = [f"{head}\n".encode()]
    size = len(pieces[0])
    for array in arrays.values():
        pieces += [bytes(-size % ALIGNED), array.data]
        size += -size % ALIGNED + array.nbytes
    return write_cache_file(file, pieces)


def open_columns(file: Path, check: bool = True) -> dict[str, Column] | None:
    """Map the columns of a file; None if it is not there, damaged, or of another version.

    Args:
        file: to map
        check: whether to read all of it for its checksum; its size is compared in any case
    """
    columns = dict[str, Column]()
    checksum = 0
    try:
        with file.open("rb") as stream:
            head = stream.readline(LONGEST_HEAD)
        about = json.loads(head)
        if about["version"] != VERSION:
            return None
        content = np.memmap(file, np.uint8, "r")
        end = len(head)
        for name, kind, count in about["columns"]:
            start = end + -end % ALIGNED
            end = start + count * np.dtype(kind).itemsize
            column = content[start:end].view(kind)
            checksum = zlib.crc32(column.data, checksum) if check else about["checksum"]
            columns[name] = column
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    is_whole = end == len(content) and checksum == about["checksum"]
    if not is_whole:
        return None
    note_cache_file(file)
    return columns
