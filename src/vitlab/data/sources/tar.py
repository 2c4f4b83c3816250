"""The members of a tar file, without unpacking anything.

Only headers are read: of ustar, GNU and POSIX (pax) archives. Only regular files are reported, up
to a limit, under names that are never used as paths. Python's own reader silently stops at a header
that it cannot read, and its older versions loop forever on some; this one reports the byte.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

BLOCK = 512
MAX_MEMBERS = 10_000_000
MAX_HEADER = 2**20  # bytes of a long name, or of a pax header

Read = Callable[[int, int], bytes]
"""Read bytes of a file: from an offset, and how many (fewer at its end)."""


class DamagedError(Exception):
    """What is wrong with an archive, and at which byte."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"damaged at byte {offset:,}: {reason}")


@dataclass(frozen=True)
class Member:
    """A regular file in an archive: its name, where its bytes begin and how many they are."""

    name: str
    offset: int
    size: int


def members(read: Read, total: int) -> Iterator[Member]:
    """Yield the regular files of an archive of `total` bytes, in order.

    Raises:
        DamagedError: an invalid header, contents that reach beyond the end, or no end mark.
    """
    offset, name, size = 0, b"", -1  # the latter two where an extra header gives them
    for _ in range(MAX_MEMBERS):
        block = read(offset, BLOCK)
        if len(block) < BLOCK:
            raise DamagedError(offset, "the archive is cut off: tar's closing blocks are missing")
        if not block.strip(b"\0"):
            return
        kind = block[156:157]
        length = _number(block[124:136])
        if not _sound(block) or length < 0:
            raise DamagedError(offset, "not a tar header" if offset else "not a tar file")
        extra = kind in (b"L", b"x")
        if not extra and size >= 0:
            length = size
        if (start := offset + BLOCK) + length > total:
            raise DamagedError(
                offset, f"the file ends before the {length:,} bytes that should follow"
            )
        if extra:
            if length > MAX_HEADER:
                raise DamagedError(offset, f"an implausible header of {length:,} bytes")
            content = read(start, length)
            if kind == b"L":
                name = content.rstrip(b"\0")
            else:
                name, size = _pax(content, name, size)
        elif kind not in (b"g", b"K"):  # neither a global header nor a link's target
            if kind in (b"0", b"\0", b"7"):
                yield Member((name or _short_name(block)).decode("utf-8", "replace"), start, length)
            name, size = b"", -1
        offset = start + -(-length // BLOCK) * BLOCK
    raise DamagedError(offset, f"more than {MAX_MEMBERS:,} members")


def _sound(block: bytes) -> bool:
    """Return whether the header's checksum is right (old programs wrote signed sums)."""
    stored = _number(block[148:156])
    rest = block[:148] + b" " * 8 + block[156:]
    total = sum(rest)
    return stored == total or stored == total - 256 * sum(byte > 127 for byte in rest)


def _number(field: bytes) -> int:
    """Return an octal or binary number; -1 for anything else."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    return int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else 0 if not digits else -1


def _short_name(block: bytes) -> bytes:
    """Return the name of at most 100 bytes, after its prefix in ustar archives."""
    name = block[:100].split(b"\0")[0]
    prefix = block[345:500].split(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(content: bytes, name: bytes, size: int) -> tuple[bytes, int]:
    """Return name and size from a pax header, or those given if it has none."""
    at = 0
    while found := re.compile(rb"(\d{1,9}) ([^=]+)=").match(content, at):
        end = at + int(found[1])
        value = content[found.end() : end - 1]
        if end <= found.end():
            break
        if found[2] == b"path":
            name = value
        elif found[2] == b"size" and value.isdigit() and len(value) < 19:
            size = int(value)
        at = end
    return name, size
