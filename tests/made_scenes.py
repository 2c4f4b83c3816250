"""Made scenes: colored shapes on a noisy ground, with the class of each pixel."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

CLASSES = ("ground", "disk", "square", "triangle")
COLORS = ((200, 60, 50), (60, 160, 70), (60, 80, 200))  # of the shapes


def scene(
    number: int, rows: int = 40, columns: int = 56, shapes: int = 4
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An image (rows, columns, 3) and its mask (rows, columns): the same for the same number."""
    draw = np.random.default_rng(number)
    image = Image.fromarray(draw.integers(90, 160, (rows, columns, 3)).astype(np.uint8))
    mask = Image.new("L", (columns, rows))
    for _ in range(shapes):
        kind, side = int(draw.integers(3)), int(draw.integers(rows // 6, rows // 3))
        x, y = int(draw.integers(columns)), int(draw.integers(rows))
        tint = np.clip(np.array(COLORS[kind]) + draw.integers(-25, 25, 3), 0, 255)
        box, corners = (x - side, y - side, x + side, y + side), None
        if kind == 2:
            corners = [(x, y - side), (x - side, y + side), (x + side, y + side)]
        for where, fill in ((image, tuple(map(int, tint))), (mask, kind + 1)):
            canvas = ImageDraw.Draw(where)
            if corners is not None:
                canvas.polygon(corners, fill=fill)
            elif kind:
                canvas.rectangle(box, fill=fill)
            else:
                canvas.ellipse(box, fill=fill)
    return np.asarray(image), np.asarray(mask)


def scene_folder(root: Path, count: int, rows: int = 40, columns: int = 56) -> Path:
    """A folder of `images/` and `masks/` with `classes.txt`; every third image is higher."""
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    for number in range(count):
        image, mask = scene(number, rows + 8 * (number % 3 == 0), columns)
        Image.fromarray(image).save(root / "images" / f"{number:03d}.png")
        Image.fromarray(mask).save(root / "masks" / f"{number:03d}.png")
    (root / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return root
