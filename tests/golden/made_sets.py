"""Tiny data sets, made of whole numbers alone: the same bytes on every machine.

photos/     class folders in train/, val/ and test/
tags.csv    images of tags/ with several labels and two numbers each
scenes/     images/ and masks/, of which each pixel has a class
boxes/      the same images with COCO's annotations
odd/        images to ask about, one of which is damaged
"""

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (rows, columns, 3), or (rows, columns) for gray
COLORS = {"blue": (40, 70, 200), "green": (50, 180, 60), "red": (210, 60, 50)}
SHAPES = ("ground", "disk", "square")
SIDE = 16  # pixels of a photo
SCENE = 32  # pixels of a scene


def write_sets(root: Path) -> None:
    """Write all of them into a folder."""
    _write_photos(root)
    _write_tags(root)
    _write_scenes(root)
    _write_vtab(root / "vtab" / "svhn")


def png(pixels: Pixels) -> bytes:
    """A PNG without compression, whose bytes no version of a library decides."""
    rows, columns = pixels.shape[:2]
    color = 0 if pixels.ndim == 2 else 2
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", columns, rows, 8, color, 0, 0, 0)
    stored = zlib.compress(lines, 0)
    parts = [(b"IHDR", head), (b"IDAT", stored), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )


def photo(number: int, tint: tuple[int, int, int], rows: int = SIDE, columns: int = SIDE) -> Pixels:
    """Noise on a slope, in a color."""
    draw = np.random.RandomState(number)  # whose numbers never change, unlike `default_rng`'s
    slope = np.add.outer(np.arange(rows), np.arange(columns))[..., None] * (number % 5 - 2)
    noise = draw.randint(-40, 41, (rows, columns, 3))
    return np.clip(np.array(tint) + slope + noise, 0, 255).astype(np.uint8)


def _write(file: Path, pixels: Pixels) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(png(pixels))


def _write_photos(root: Path) -> None:
    for split, count in (("train", 8), ("val", 3), ("test", 4)):
        for index, (name, color) in enumerate(COLORS.items()):
            for number in range(count):
                seed = 1000 * ("train", "val", "test").index(split) + 100 * index + number
                _write(root / "photos" / split / name / f"{number}.png", photo(seed, color))
    copy = (root / "photos" / "train" / "red" / "0.png").read_bytes()
    (root / "photos" / "test" / "red" / "3.png").write_bytes(copy)  # to be found
    for number, rows in enumerate((SIDE, 20, 24)):
        _write(root / "odd" / f"{number}.png", photo(7000 + number, (90, 90, 160), rows, 20))
    (root / "odd" / "9.png").write_bytes(b"\x89PNG no more")


def _write_tags(root: Path) -> None:
    rows = ["path,tags,height,weight,split"]
    for number in range(30):
        bits = [name for bit, name in enumerate(("dark", "striped", "warm")) if number >> bit & 1]
        pixels = photo(3000 + number, (200 if "warm" in bits else 90, 90, 60 + number))
        if "dark" in bits:
            pixels //= 2
        if "striped" in bits:
            pixels[::4] = 255
        _write(root / "tags" / f"{number:02}.png", pixels)
        split = "test" if number % 3 == 0 else "train"
        height = 100 + 7 * number % 50
        rows.append(f"tags/{number:02}.png,{'|'.join(bits)},{height},{number / 4},{split}")
    (root / "tags.csv").write_text("\n".join(rows) + "\n")


def _scenes() -> Iterator[tuple[Pixels, Pixels, list[tuple[int, tuple[int, int, int, int]]]]]:
    """Images, their masks, and the shapes in them: class and left, top, width, height."""
    for number in range(20):
        draw = np.random.RandomState(9000 + number)
        pixels, mask = (
            photo(number, (110, 110, 110), SCENE, SCENE),
            np.zeros((SCENE, SCENE), np.uint8),
        )
        shapes = []
        for kind in (1, 2)[: 1 + number % 2] or (2,):
            side = int(draw.randint(8, 13))
            left, top = (int(draw.randint(0, SCENE - side)) for _ in range(2))
            inside = np.zeros((SCENE, SCENE), bool)
            inside[top : top + side, left : left + side] = True
            if kind == 1:
                away = np.arange(SCENE) * 2 + 1
                across, down = away - 2 * left - side, away - 2 * top - side
                inside &= np.add.outer(down**2, across**2) <= side**2
            pixels[inside] = (220, 90, 60) if kind == 1 else (60, 110, 220)
            mask[inside] = kind
            shapes.append((kind, (left, top, side, side)))
        yield pixels, mask, shapes


def _write_scenes(root: Path) -> None:
    images, found = [], []
    for number, (pixels, mask, shapes) in enumerate(_scenes()):
        name = f"{number:02}.png"
        _write(root / "scenes" / "images" / name, pixels)
        _write(root / "scenes" / "masks" / name, mask)
        _write(root / "boxes" / "images" / name, pixels)
        images.append({"id": number, "file_name": name, "width": SCENE, "height": SCENE})
        for kind, box in shapes:
            known = {"image_id": number, "category_id": kind, "bbox": box, "area": box[2] * box[3]}
            found.append(known | {"id": len(found), "iscrowd": 0})
    names = [{"id": kind, "name": name} for kind, name in enumerate(SHAPES) if kind]
    (root / "scenes" / "classes.txt").write_text("".join(f"{name}\n" for name in SHAPES))
    annotations = {"images": images, "annotations": found, "categories": names}
    (root / "boxes" / "annotations.json").write_text(json.dumps(annotations))


def _write_vtab(folder: Path) -> None:
    """Write a task: equal images would have answers whose order the last bits decide."""
    for number in range(60):
        tint = (24 * (number % 10), 90, 240 - 24 * (number % 10))
        _write(folder / "images" / f"{number}.png", photo(number, tint, 8, 8))
    for name, count, first in (("train800", 800, 0), ("val200", 200, 20), ("test", 20, 40)):
        rows = [f"images/{first + number % 20}.png {number % 10}" for number in range(count)]
        (folder / f"{name}.txt").write_text("\n".join(rows) + "\n")
