"""Samples of more than 8 bits that fill only some of them: as the file says, or refused."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.decode.stored import EncodedImage
from vitlab.data.open import open_images
from vitlab.data.sources.pictures import stored
from vitlab.errors import ImageError
from vitlab.models.config import ViTConfig
from vitlab.serve.decoder import decoded

EIGHT = np.linspace(0, 255, 36).round().astype(np.int64).reshape(6, 6)
TWELVE = np.linspace(0, 4095, 36).round().astype(np.int64).reshape(6, 6)


def encoded(values: NDArray[np.int64], kind: str, bits: int, tags: dict[int, Any]) -> bytes:
    """An image file by Pillow, of 16 or 32 bits; sBIT is among the tags of a PNG."""
    image = Image.fromarray(values.astype(np.uint16 if bits == 16 else np.int32))
    stream = io.BytesIO()
    if kind == "TIFF":
        image.save(stream, kind, tiffinfo=tags)
        return stream.getvalue()
    image.save(stream, kind)
    data = stream.getvalue()
    if not tags:
        return data
    chunk = b"sBIT" + bytes([tags[0]])
    chunk = struct.pack(">I", 1) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return data[:33] + chunk + data[33:]


SAID: list[tuple[str, int, NDArray[np.int64], dict[int, Any], NDArray[np.int64]]] = [
    ("TIFF", 32, EIGHT, {341: 255}, EIGHT),
    ("TIFF", 32, EIGHT, {281: 255}, EIGHT),
    ("TIFF", 32, TWELVE, {340: 0, 341: 4095}, TWELVE >> 4),
    ("TIFF", 16, TWELVE, {341: 4095}, TWELVE >> 4),
    ("TIFF", 16, TWELVE, {341: 3071}, TWELVE >> 4),  # a range of 12 bits, whatever is used of it
    ("TIFF", 32, TWELVE << 12, {341: 2**24 - 1}, TWELVE >> 4),
    ("TIFF", 16, TWELVE << 4, {341: 4095}, TWELVE >> 4),  # the file has more than it says
    ("PNG", 16, TWELVE, {0: 12}, TWELVE >> 4),
    ("PNG", 16, EIGHT, {0: 8}, EIGHT),
    ("PNG", 16, TWELVE << 4 | TWELVE >> 8, {0: 12}, TWELVE >> 4),  # widened, as PNG wants it
    ("PNG", 16, (TWELVE >> 5) << 4, {0: 12}, TWELVE >> 9),  # a dark one, widened
    ("PNG", 16, TWELVE << 4, {}, TWELVE >> 4),
]


@pytest.mark.parametrize(("kind", "bits", "values", "tags", "gray"), SAID)
def test_samples_are_scaled_as_the_file_says_at_every_door(
    kind: str, bits: int, values: NDArray[np.int64], tags: dict[int, Any], gray: NDArray[np.int64],
    tmp_path: Path,
) -> None:  # fmt: skip
    data = encoded(values, kind, bits, tags)
    path = tmp_path / f"a.{kind.lower()}"
    path.write_bytes(data)
    with Image.open(path) as held:
        held.load()
    config = ViTConfig(width=8, depth=1, heads=1, mlp=8, patch=2, image_size=6, channels=1,
                       fit="squash", crop=1.0)  # fmt: skip
    doors = {
        "bytes": EncodedImage(data).decode(1),
        "path": stored(path).decode(1),
        "data": open_images(str(path), "ignored").every().image(0).decode(1),
        "Pillow, decoded": stored(held).decode(1),
        "a loader's box": EncodedImage(data).decode_box(1, lambda r, c: (0, 0, c, r), (1, 1))[0],
        "service": decoded(EncodedImage(data, "a", (kind,), 10**6), config)[0],
    }
    with Image.open(path) as opened:
        doors["Pillow, opened"] = stored(opened).decode(1)
    for door, pixels in doors.items():
        assert pixels[..., 0].tolist() == gray.tolist(), door


@pytest.mark.parametrize(("kind", "bits"), [("TIFF", 32), ("TIFF", 16), ("PNG", 16)])
def test_what_would_be_black_is_refused_and_the_advice_works(kind: str, bits: int) -> None:
    data = encoded(EIGHT, kind, bits, {})
    with pytest.raises(ImageError, match="16 or 32 bits that are at most 255, so black") as refused:
        EncodedImage(data, "dark").decode(1)
    message = str(refused.value)
    assert message.startswith("dark: ")
    assert "save it with 8 bits" in message
    assert "SMaxSampleValue" in message
    eight = io.BytesIO()
    Image.fromarray(np.asarray(Image.open(io.BytesIO(data))).astype(np.uint8)).save(eight, "PNG")
    assert EncodedImage(eight.getvalue()).decode(1)[..., 0].tolist() == EIGHT.tolist()
    said = encoded(EIGHT, kind, bits, {341: 255} if kind == "TIFF" else {0: 8})
    assert EncodedImage(said).decode(1)[..., 0].tolist() == EIGHT.tolist()
    with pytest.raises(ImageError, match="so black"):
        stored(Image.open(io.BytesIO(data)).copy()).decode(1)


def test_black_is_black_and_one_bright_pixel_is_enough_in_an_image_of_many_bands() -> None:
    black = np.zeros((6, 6), np.int64)
    assert not EncodedImage(encoded(black, "PNG", 16, {})).decode(1).any()
    tall = np.full((3000, 1000), 40, np.int64)  # in three bands
    tall[-1, -1] = 65535
    pixels = EncodedImage(encoded(tall, "TIFF", 32, {})).decode(1)
    assert (pixels[0, 0, 0], pixels[-1, -1, 0]) == (0, 255)
    tall[-1, -1] = 40
    with pytest.raises(ImageError, match="at most 40, so black"):
        EncodedImage(encoded(tall, "TIFF", 32, {})).decode(1)


def colored(values: NDArray[np.int64], kind: str, tags: dict[int, Any]) -> bytes:
    """A file of 16-bit colors, which Pillow cannot write."""
    three = np.repeat(values[..., None], 3, axis=2)
    rows, columns = values.shape
    if kind == "PNG":

        def chunk(name: bytes, content: bytes) -> bytes:
            check = struct.pack(">I", zlib.crc32(name + content))
            return struct.pack(">I", len(content)) + name + content + check

        lines = zlib.compress(b"".join(b"\0" + bytes(line) for line in three.astype(">u2")))
        said = chunk(b"sBIT", bytes([tags[0]] * 3)) if tags else b""
        head = struct.pack(">IIBBBBB", columns, rows, 16, 2, 0, 0, 0)
        body = chunk(b"IHDR", head) + said + chunk(b"IDAT", lines) + chunk(b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + body
    pixels = three.astype("<u2").tobytes()
    entries = {256: columns, 257: rows, 258: 16, 259: 1, 262: 2, 273: 8, 277: 3, 278: rows,
               279: len(pixels)} | tags  # fmt: skip
    at, bits = 8 + len(pixels), 8 + len(pixels) + 2 + 12 * len(entries) + 4
    directory = b"".join(
        struct.pack("<HHII", tag, 3, 3, bits) if tag == 258 else struct.pack("<HHII", tag, 4, 1, v)
        for tag, v in sorted(entries.items())
    )
    end = struct.pack("<I3H", 0, 16, 16, 16)
    return (
        struct.pack("<2sHI", b"II", 42, at)
        + pixels
        + struct.pack("<H", len(entries))
        + (directory + end)
    )


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_colors_of_fewer_bits_are_refused_since_pillow_keeps_the_upper_byte(kind: str) -> None:
    fine = EncodedImage(colored(TWELVE << 4, kind, {})).decode(3)
    assert fine[..., 1].tolist() == (TWELVE >> 4).tolist()
    assert not EncodedImage(colored(EIGHT * 0, kind, {})).decode(3).any()
    with pytest.raises(ImageError, match="colors of 16 bits that are below 256, so black"):
        EncodedImage(colored(EIGHT, kind, {})).decode(3)
    said: dict[int, Any] = {0: 12} if kind == "PNG" else {281: 4095}
    with pytest.raises(ImageError, match="colors of 16 bits that are below 4,096, so black"):
        EncodedImage(colored(TWELVE, kind, said)).decode(3)
    if kind == "PNG":  # widened, as PNG wants it
        dark = EncodedImage(colored((TWELVE >> 5) << 4, kind, said)).decode(3)
        assert dark[..., 2].tolist() == (TWELVE >> 9).tolist()
