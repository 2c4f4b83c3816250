"""Tasks of VTAB-1k made of two files per split."""

from pathlib import Path

import numpy as np
from PIL import Image

from made_files import encoded


def png(level: int) -> bytes:
    return encoded(Image.fromarray(np.full((4, 4), level, np.uint8)))


def listed(folder: Path, classes: int = 10, test: int = 30) -> Path:
    """Lists of 800, 200 and some images, each of which names two files again and again."""
    (folder / "images").mkdir(parents=True)
    for level in range(6):
        (folder / "images" / f"{level} .png").write_bytes(png(level))
    splits = (("train800.txt", 800, 0), ("val200.txt", 200, 2), ("test.txt", test, 4))
    for name, count, first in splits:
        lines = [f"images/{first + number % 2} .png {number % classes}" for number in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder
