"""Hostile requests about images, made from a seed: damaged files and odd forms."""

import io
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from serve.calling import form

Chance = random.Random
KINDS = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "ICO", "PPM")
TYPES = (
    "image/png", "image/jpeg", "image/*", "image/", "application/octet-stream", "", "IMAGE/PNG",
    "application/json", "multipart/form-data", "multipart/form-data; boundary=", "text/html",
    "multipart/form-data; boundary=xyz", "multipart/form-data; boundary=" + "b" * 300,
    "application/json; charset=utf-16", "multipart/mixed; boundary=xyz", "*/*", "a" * 5000,
    'multipart/form-data; boundary="x\\"y', "application/x-www-form-urlencoded", "image/svg+xml",
)  # fmt: skip


@dataclass
class Hostile:
    """A request: how it was made, where it goes, and what is in it."""

    how: str
    path: str
    body: bytes
    headers: list[tuple[str, str]]


def pictures() -> dict[str, bytes]:
    """A small photograph in each format."""
    noise = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    found = {}
    for kind in KINDS:
        stream = io.BytesIO()
        Image.fromarray(noise).save(stream, kind)
        found[kind] = stream.getvalue()
    return found


FILES = pictures()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bomb(width: int, height: int) -> bytes:
    """A PNG of a size whose pixels are not there."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(2**16), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


# compressed text of many times its size
TEXT = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**24), 9))
ODD = {
    "empty": b"", "one byte": b"\xff", "text": b"<html><script>alert(1)</script>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>',
    "bomb": png_bomb(60_000, 60_000), "wide": png_bomb(2**31 - 1, 1), "flat": png_bomb(0, 0),
    "text bomb": FILES["PNG"][:33] + TEXT * 8 + FILES["PNG"][33:],
    "jpeg and html": FILES["JPEG"] + b"<script>", "zeros": bytes(100_000),
    "png in jpeg": FILES["JPEG"][:200] + FILES["PNG"], "animation": FILES["GIF"] * 50,
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "pdf": b"%PDF-1.7\n",
    "avif": b"\x00\x00\x00 ftypavif", "webp bomb": b"RIFF\xff\xff\xff\x7fWEBPVP8X" + bytes(10),
    "jpeg size": FILES["JPEG"].replace(b"\xff\xc0\x00\x11\x08\x00\x18\x00\x20",
                                       b"\xff\xc0\x00\x11\x08\xff\xff\xff\xff"),
}  # fmt: skip


def damaged(chance: Chance) -> tuple[str, bytes]:
    """A file that is cut, changed, extended or something else."""
    if chance.random() < 0.3:
        return chance.choice(list(ODD.items()))
    kind, how = (
        chance.choice(KINDS),
        chance.choice(("whole", "cut", "flipped", "zeroed", "doubled")),
    )
    data, start = bytearray(FILES[kind]), chance.randrange(len(FILES[kind]))
    if how == "cut":
        del data[start:]
    elif how == "flipped":
        for _ in range(chance.choice((1, 3, 30))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif how == "zeroed":
        data[start:] = bytes(len(data) - start)
    elif how == "doubled":
        data += bytes(data)
    return f"{how} {kind}", bytes(data)


def raw(chance: Chance) -> Hostile:
    """One file as the whole body."""
    how, data = damaged(chance)
    headers = [("content-type", chance.choice(TYPES))] if chance.random() < 0.5 else []
    if chance.random() < 0.1:
        headers.append(("content-encoding", chance.choice(("gzip", "br", "identity", "x" * 99))))
    return Hostile(how, "/predict", data, headers)


def forms(chance: Chance) -> Hostile:
    """Files in a form, then perhaps one that is not well formed."""
    names = ("a.png", "", "../../../etc/passwd", "\u202e.png", "x" * 4000, "a\\b", "\0", "%00")
    files = [
        (chance.choice(names), damaged(chance)[1]) for _ in range(chance.choice((0, 1, 2, 5, 40)))
    ]
    body, kind = form(*files)
    how = chance.choice(("whole", "cut", "flipped", "field", "header", "headers", "twice", "ends"))
    if how == "cut":
        body = body[: chance.randrange(len(body))]
    elif how == "flipped" and body:
        place = chance.randrange(min(len(body), 200))
        body = body[:place] + bytes([body[place] ^ (1 << chance.randrange(8))]) + body[place + 1 :]
    elif how == "field":
        body = b'--xyz\r\nContent-Disposition: form-data; name="top"\r\n\r\n5\r\n' + body
    elif how == "header":
        body = b"--xyz\r\nX: " + b"y" * chance.choice((10, 10_000)) + b"\r\n\r\n\r\n" + body
    elif how == "headers":
        body = b"--xyz\r\n" + b"A: b\r\n" * 100 + b"\r\n" + body
    elif how == "twice":
        line = b'Content-Disposition: form-data; name="a"; filename="a"\r\n'
        body = b"--xyz\r\n" + line * 2 + b"\r\nx\r\n" + body
    elif how == "ends":
        body = b"\r\n--xy" * chance.choice((10, 20_000)) + body
    return Hostile(f"form {how}", "/predict", body, [("content-type", kind)])


def requests(seed: int, count: int) -> Iterator[Hostile]:
    """Yield hostile requests, the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        made = chance.choice((raw, forms))(chance)
        made.path = chance.choice(("/predict", "/predict", "/features", "/attention"))
        yield made
