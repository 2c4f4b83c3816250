"""Hashes of bytes and texts: 8 or 16 bytes that identify some content."""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
DIGEST = 16  # bytes


def digests(texts: Iterable[str]) -> Hashes:
    """Return 8 bytes for each text, (n,)."""
    return np.array([number_of(text.encode()) for text in texts], np.uint64)


def number_of(content: bytes) -> int:
    """Return the number of 8 bytes that identifies some content."""
    return int.from_bytes(digest(content, 8))


def digest(content: bytes, size: int = DIGEST) -> bytes:
    """Return a checksum of some bytes."""
    return hashlib.blake2b(content, digest_size=size).digest()
