"""Tasks of VTAB-1k made of two files."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image


def png(level: int) -> bytes:
    stream = BytesIO()
    Image.fromarray(np.full((4, 4), level, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def listed(folder: Path, classes: int = 10, test: int = 30) -> Path:
    """Lists of 800, 200 and some images, which name the same two files again and again."""
    (folder / "images").mkdir(parents=True)
    for level in (0, 1):
        (folder / "images" / f"{level} .png").write_bytes(png(level))
    for name, count in (("train800.txt", 800), ("val200.txt", 200), ("test.txt", test)):
        lines = [f"images/{number % 2} .png {number % classes}" for number in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder
