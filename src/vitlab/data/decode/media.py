"""Files of pictures, sounds and films, told apart by their first bytes."""

from collections.abc import Callable

from vitlab.by_name import load_object
from vitlab.data.decode.formats import format_of
from vitlab.data.decode.stored import EncodedImage, StoredImage

DECODERS: dict[str, str] = {
    "sound": "vitlab.data.decode.sound:Clip",
    "matroska": "vitlab.data.decode.film:matroska_film",
    "avi": "vitlab.data.decode.film:avi_film",
    "mov": "vitlab.data.decode.film:mov_film",
}
"""What decodes a file of other media, given its bytes and its name."""


def stored_file(data: bytes, name: str) -> StoredImage:
    """Return what a file has, not yet decoded.

    Args:
        data: the whole file
        name: what to call it in an error
    """
    if kind := kind_of_media(data):
        decoder: Callable[[bytes, str], StoredImage] = load_object(DECODERS[kind])
        return decoder(data, name)
    return EncodedImage(data, name)


def kind_of_media(data: bytes) -> str:
    """Return the name of the decoder of a file of sound or film; empty for pictures."""
    riff = data[8:12] if data[:4] == b"RIFF" else b""
    if data[:4] in (b"fLaC", b"OggS") or riff == b"WAVE":
        return "sound"
    if data[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    if riff == b"AVI ":
        return "avi"
    is_film = data[4:8] == b"ftyp" and not format_of(data)  # else AVIF, HEIF
    return "mov" if is_film else ""
