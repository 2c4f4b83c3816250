"""Files of pictures, sounds and films, told apart by their first bytes."""

from vitlab.data.decode.film import Film
from vitlab.data.decode.formats import format_of
from vitlab.data.decode.sound import Clip
from vitlab.data.decode.stored import EncodedImage, StoredImage


def stored_file(data: bytes, name: str) -> StoredImage:
    """Return what a file has, not yet decoded.

    Args:
        data: the whole file
        name: what to call it in an error
    """
    riff = data[8:12] if data[:4] == b"RIFF" else b""
    if data[:4] in (b"fLaC", b"OggS") or riff == b"WAVE":
        return Clip(data, name)
    if data[:4] == b"\x1aE\xdf\xa3":
        return Film(data, name, "matroska")
    if riff == b"AVI ":
        return Film(data, name, "avi")
    if data[4:8] == b"ftyp" and not format_of(data):  # else AVIF, HEIF
        return Film(data, name, "mov")
    return EncodedImage(data, name)
