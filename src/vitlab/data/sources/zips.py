"""Zip archives: images read in place, member by member; nothing is unpacked.

A zip has the same images, labels and splits as the folder that it was made from: its names become a
`FileTree`, and `data/sources/layouts.py` decides what they mean. The directory is read once, by
`zipfile`; an image then by its place in the file, so that threads and processes share nothing.
"""

import os
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.formats import FORMATS, HEAD, image_kind
from vitlab.data.decode.headers import MAX_BYTES
from vitlab.data.decode.media import stored_file
from vitlab.data.decode.stored import StoredImage
from vitlab.data.folder_names import is_system_name
from vitlab.data.images import Images
from vitlab.data.labels import Labels
from vitlab.data.sources.containers import Container
from vitlab.data.sources.file_tree import FileTree, Listing, add_folder, look_into
from vitlab.data.sources.layouts import open_tree
from vitlab.data.sources.lists import METADATA
from vitlab.data.sources.paths import Names, decode_text, reason, some
from vitlab.data.sources.request import Found, Request
from vitlab.data.sources.urls import is_url
from vitlab.data.target import Classes, Integers
from vitlab.errors import DataError, ImageError
from vitlab.files import check_regular
from vitlab.units import counted

SUFFIX = ".zip"
MAX_MEMBERS = 2_000_000
LARGEST_DIRECTORY = 2**28  # bytes
MAX_DEPTH = 64  # folders in folders
MAX_RATIO = 200  # between the bytes of a large file and those stored: zeros reach 1,000
LARGE = 2**26  # bytes
_LARGEST_SIZE = 2**60
_ENTRY = b"PK\1\2"  # begins each entry of the directory
_LOCAL_MARK = b"PK\3\4"  # begins the header before each member
_LOCAL = struct.Struct("<4s5H3I2H")  # that header: a name and an extra field follow
_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflate"}
_OTHER_METHODS = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "XZ", 98: "PPMd"}
_ENCRYPTED = 0x1  # flags of a member
_UTF_8 = 0x800


class DirectoryReader(RawIOBase):
    """A zip as the file whose directory `zipfile` reads: of a limited size, by any thread."""

    def __init__(self, handle: int, size: int) -> None:
        """Begin at the start.

        Args:
            handle: of the open file
            size: of the file, in bytes
        """
        self.handle = handle
        self.size = size
        self.position = 0

    def readable(self) -> bool:
        """Return whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Return whether it has positions."""
        return True

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence]
        if start + position < 0:
            raise OSError("a position before the start")
        self.position = start + position
        return self.position

    def tell(self) -> int:
        """Return the position."""
        return self.position

    def read(self, count: int = -1) -> bytes:
        """Return some bytes, fewer at the end.

        Raises:
            DataError: a directory that is too large, or of too many members.
        """
        left = max(0, self.size - self.position)
        count = left if count < 0 else min(count, left)
        if count > LARGEST_DIRECTORY:
            raise DataError(f"its directory has more than {LARGEST_DIRECTORY:,} bytes")
        data = os.pread(self.handle, count, self.position)
        self.position += len(data)
        if data.count(_ENTRY) > MAX_MEMBERS:
            raise DataError(f"more than {MAX_MEMBERS:,} members")
        return data


@dataclass(frozen=True, eq=False)
class MemberTable:
    """Where the members of a zip are in it: arrays of a row each.

    Attributes:
        offsets: of their headers, (n,)
        stored: bytes as they are stored, (n,)
        sizes: bytes of the files, (n,)
        checksums: CRC-32 of the files, (n,)
        is_deflated: compressed, not stored as they are, (n,)
    """

    offsets: Integers
    stored: Integers
    sizes: Integers
    checksums: Integers
    is_deflated: NDArray[np.bool_]

    def take(self, rows: Integers) -> "MemberTable":
        """Return some of the members."""
        return MemberTable(
            self.offsets[rows],
            self.stored[rows],
            self.sizes[rows],
            self.checksums[rows],
            self.is_deflated[rows],
        )

    def read(self, file: str, row: int, limit: int) -> bytes:
        """Return a file in the zip.

        Args:
            file: the zip
            row: of the file
            limit: bytes of it, at most

        Raises:
            ValueError: it is larger, grows too much, or is damaged.
            OSError: the zip cannot be read.
        """
        stored = int(self.stored[row])
        size = int(self.sizes[row])
        if max(size, stored) > limit:
            raise ValueError(f"{max(size, stored):,} bytes exceed the limit of {limit:,}")
        if size > LARGE and size > MAX_RATIO * stored:
            raise ValueError(f"{stored:,} bytes that grow to {size:,} are no image")
        data = self._expand(self._stored(file, row, stored), row, size + 1)
        if len(data) != size:
            raise ValueError("damaged: its size is not the one in the directory")
        if zlib.crc32(data) != int(self.checksums[row]):
            raise ValueError("damaged: its checksum (CRC) is another")
        return data

    def head(self, file: str, row: int, count: int) -> bytes:
        """Return the first bytes of a file in the zip, as `read`; unchecked."""
        stored = min(int(self.stored[row]), 16 * count)
        return self._expand(self._stored(file, row, stored), row, count)[:count]

    def _stored(self, file: str, row: int, count: int) -> bytes:
        """Return the first bytes of a member as they are stored."""
        with Path(file).open("rb", buffering=0) as stream:
            handle = stream.fileno()
            offset = int(self.offsets[row])
            header = os.pread(handle, _LOCAL.size, offset)
            if len(header) < _LOCAL.size or not header.startswith(_LOCAL_MARK):
                raise ValueError("damaged: the zip has another member in its place")
            method = header[8:10]
            lengths = header[26:30]
            if (method != b"\0\0") != bool(self.is_deflated[row]):
                raise ValueError("damaged: its header contradicts the directory")
            start = offset + _LOCAL.size + sum(struct.unpack("<2H", lengths))
            data = os.pread(handle, count, start)
        if len(data) < count:
            raise ValueError("the zip is cut off")
        return data

    def _expand(self, data: bytes, row: int, most: int) -> bytes:
        """Return at most so many bytes of a file from those that are stored."""
        if not self.is_deflated[row]:
            return data
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)
        except zlib.error as error:
            raise ValueError(f"damaged: {error}") from None


@dataclass(frozen=True, eq=False)
class ZipImages:
    """Images in a zip, as a store.

    Attributes:
        file: the zip
        paths: of the images in it
        members: where they are
    """

    file: str
    paths: Names
    members: MemberTable
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.paths)

    def image(self, index: int) -> StoredImage:
        """Read one member.

        Raises:
            ImageError: it cannot be read, is too large, or is damaged.
        """
        name = self.name(index)
        try:
            data = self.members.read(self.file, index, MAX_BYTES)
        except (OSError, ValueError) as error:
            raise ImageError(f"{name}: {reason(error)}") from None
        return stored_file(data, name)

    def containers(self) -> list[Container]:
        """Return the zip, whose images are told apart by where they begin."""
        return [Container([self.file], slice(0, len(self)), self.members.offsets)]

    def name(self, index: int) -> str:
        """Return the zip and the path in it."""
        return f"{self.file}/{self.paths[index]}"


@dataclass(frozen=True)
class ZipPlace:
    """A zip as the place of a `FileTree`.

    Attributes:
        file: the zip
        rows: of the files in it, by path
        members: where they are
    """

    file: str
    rows: dict[str, int]
    members: MemberTable
    is_archive: ClassVar[bool] = True

    def title(self, path: str) -> str:
        """Return the zip and the path in it."""
        return f"{self.file}/{path}" if path else self.file

    def source(self, folder: str, paths: Sequence[str], labels: Labels, classes: Classes) -> Images:
        """Return images, by their paths in a folder of the tree, with their labels."""
        whole = [f"{folder}/{path}" if folder else path for path in paths]
        rows = np.array([self.rows[path] for path in whole], np.int64)
        store = ZipImages(self.file, Names.of(whole), self.members.take(rows))
        return Images.of(store, labels, classes)

    def read_text(self, path: str, limit: int) -> str:
        """Return the text of a file.

        Raises:
            DataError: it cannot be read, is larger than `limit` bytes, or is no text.
        """
        try:
            content = self.members.read(self.file, self.rows[path], min(limit, MAX_BYTES))
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read {self.title(path)}: {reason(error)}") from None
        return decode_text(content, self.title(path))

    def is_image(self, path: str) -> bool:
        """Return whether a file is an image that can be read, by its first bytes."""
        try:
            first = self.members.head(self.file, self.rows[path], HEAD)
        except (OSError, ValueError):
            return False
        return image_kind(first) in FORMATS


def open_zip(request: Request) -> Found | None:
    """Open a zip of images, laid out as a folder may be; None for other data.

    Raises:
        DataError: it is damaged, encrypted or compressed in an unusual way, exceeds a limit, or has
            no layout that is known.
    """
    path = request.path
    if path.suffix.lower() != SUFFIX or is_url(request.data) or not path.is_file():
        return None
    tree, notes = list_zip(path)
    for name in METADATA:
        if name in tree.listing.beside and request.target != "none":
            raise DataError(
                f"{path} has a list of its images, {name}, which is not read in a zip: unpack it "
                "and name the folder"
            )
    found = open_tree(tree, request)
    return Found(found.parts, [*found.notes, *notes])


# Its directory


def list_zip(path: Path) -> tuple[FileTree, list[str]]:
    """Return the tree of the names in a zip, and lines about members that are left out.

    Regular files count, by their own names: no links, no names that lead out of the zip.

    Raises:
        DataError: it is damaged, encrypted, compressed in an unusual way, or exceeds a limit.
    """
    infos, end = _read_directory(path)
    _check_places(infos, end, path)
    names, notes = _clean_names([info for info in infos if not info.filename.endswith("/")], path)
    listings = {"": Listing()}
    doubtful = list[tuple[str, str]]()
    rows = dict[str, int]()
    chosen = list[zipfile.ZipInfo]()
    for name, info in names:
        if name in rows:
            raise DataError(f"{path} has two members named {name}: zip it again without copies")
        rows[name] = len(chosen)
        chosen.append(info)
        folder, _, base = name.rpartition("/")
        whole = f"{folder}/" if folder else ""
        if add_folder(listings, whole).add_file(base):
            doubtful.append((whole, base))
    _check_members(chosen, path)
    for info in infos:
        parts = info.filename.split("/")[:-1]
        is_plain = 0 < len(parts) <= MAX_DEPTH and not {"", ".", ".."} & {*parts}
        if info.filename.endswith("/") and is_plain and not any(map(is_system_name, parts)):
            add_folder(listings, info.filename)
    place = ZipPlace(str(path), rows, _table_of(chosen))
    return look_into(place, listings, doubtful), notes


def _read_directory(path: Path) -> tuple[list[zipfile.ZipInfo], int]:
    """Return the entries of the directory of a zip, and where it begins."""
    try:
        check_regular(path)
        with path.open("rb", buffering=0) as file:
            reader: Any = DirectoryReader(file.fileno(), os.fstat(file.fileno()).st_size)
            with zipfile.ZipFile(reader) as archive:
                return archive.infolist(), archive.start_dir
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from None
    except Exception as error:  # of damaged ones `zipfile` raises several kinds
        raise DataError(
            f"{path} is no zip, is cut off, or is damaged ({reason(error)}): zip the folder again"
        ) from None


def _clean_names(
    infos: Sequence[zipfile.ZipInfo], path: Path
) -> tuple[list[tuple[str, zipfile.ZipInfo]], list[str]]:
    """Return the members that count with their names, and lines about others."""
    found = list[tuple[str, zipfile.ZipInfo]]()
    left = dict[str, list[str]]()
    odd = [info.filename for info in infos if not _is_known_text(info)]
    names = [_spell_name(info) for info in infos]
    if any("\\" in name for name in names) and not any("/" in name for name in names):
        names = [name.replace("\\", "/") for name in names]  # of Windows
    for name, info in zip(names, infos, strict=True):
        parts = [part for part in name.split("/") if part not in ("", ".")]
        kind = stat.S_IFMT(info.external_attr >> 16)
        is_empty = not parts or name.endswith("/")
        if is_empty or any(is_system_name(part) for part in parts if part != ".."):
            continue
        is_absolute = name.startswith("/") or name[1:3] in (":/", ":\\")
        if is_absolute or ".." in parts or "\0" in info.orig_filename:
            left.setdefault("whose names lead out of it", []).append(name)
        elif kind and kind != stat.S_IFREG:
            left.setdefault("that are links or devices", []).append(name)
        elif len(parts) > MAX_DEPTH:
            left.setdefault(f"in more than {MAX_DEPTH} folders", []).append(name[:80])
        else:
            found.append(("/".join(parts), info))
    notes = [
        f"left out {counted(len(own), 'member')} of {path} {why}: {some(own)}"
        for why, own in left.items()
    ]
    if odd:
        notes.append(
            f"{counted(len(odd), 'name')} in {path} do not say their encoding: read as those of "
            f"MS-DOS ({some(odd)})"
        )
    return found, notes


def _spell_name(info: zipfile.ZipInfo) -> str:
    """Return the name of a member: many programs write UTF-8 without saying so."""
    if info.flag_bits & _UTF_8 or info.filename.isascii() or not _is_known_text(info):
        return info.filename
    return info.filename.encode("cp437").decode("utf-8")


def _is_known_text(info: zipfile.ZipInfo) -> bool:
    """Return whether the name of a member is UTF-8, whether or not the zip says so."""
    if info.flag_bits & _UTF_8 or info.filename.isascii():
        return True
    try:
        info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return False
    return True


def _check_members(infos: Sequence[zipfile.ZipInfo], path: Path) -> None:
    """Refuse members that cannot be read: encrypted, of another part, or compressed otherwise."""
    if secret := [info.filename for info in infos if info.flag_bits & _ENCRYPTED]:
        raise DataError(
            f"{path}: {len(secret):,} of {len(infos):,} members are encrypted ({some(secret)}): "
            "unpack it with its password and name the folder"
        )
    if any(info.volume for info in infos):
        raise DataError(f"{path} is one of several parts: unpack them and name the folder")
    methods = Counter(info.compress_type for info in infos)
    if others := sorted(methods.keys() - _METHODS.keys()):
        names = ", ".join(_OTHER_METHODS.get(each, f"method {each}") for each in others)
        raise DataError(
            f"{path}: {sum(methods[each] for each in others):,} of {len(infos):,} members are "
            f"compressed by {names}, which is not read: unpack it and name the folder, or zip it "
            "again by deflate"
        )


def _table_of(infos: Sequence[zipfile.ZipInfo]) -> MemberTable:
    """Return where members are."""
    return MemberTable(
        np.array([info.header_offset for info in infos], np.int64),
        np.array([info.compress_size for info in infos], np.int64),
        np.array([info.file_size for info in infos], np.int64),
        np.array([info.CRC for info in infos], np.int64),
        np.array([info.compress_type == zipfile.ZIP_DEFLATED for info in infos], bool),
    )


def _check_places(infos: Sequence[zipfile.ZipInfo], end: int, path: Path) -> None:
    """Refuse members that share bytes, which is how small zips unpack to petabytes.

    Args:
        infos: all members
        end: where the directory begins
        path: of the zip
    """
    places = sorted((info.header_offset, info.compress_size) for info in infos)
    ends = [offset + _LOCAL.size + size for offset, size in places]
    starts = [offset for offset, _ in places][1:]
    is_outside = bool(places) and (places[0][0] < 0 or ends[-1] > end)
    if is_outside or any(one > other for one, other in zip(ends, starts, strict=False)):
        raise DataError(f"{path} is damaged, or made to harm: its members overlap")
    if any(info.file_size > _LARGEST_SIZE for info in infos):
        raise DataError(f"{path} is damaged, or made to harm: a member says that it has exabytes")
