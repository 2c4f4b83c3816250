"""Files of pictures and of sounds, told apart by their first bytes."""

from vitlab.data.decode.sound import Clip
from vitlab.data.decode.stored import EncodedImage, StoredImage


def stored_file(data: bytes, name: str) -> StoredImage:
    """Return what a file has, not yet decoded.

    Args:
        data: the whole file
        name: what to call it in an error
    """
    if data[:4] in (b"fLaC", b"OggS") or (data[:4] == b"RIFF" and data[8:12] == b"WAVE"):
        return Clip(data, name)
    return EncodedImage(data, name)
