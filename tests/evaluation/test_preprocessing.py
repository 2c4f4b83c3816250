"""What evaluation shows a model, against Pillow's resize and center crop of the same files."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vitlab.data.labels import SingleLabels
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.sources.folders import Files
from vitlab.images import ImageSpec

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def detailed(rows: int, columns: int, seed: int) -> Image.Image:
    """Return a picture with detail at every scale, down to single pixels."""
    generator = np.random.default_rng(seed)
    total = np.zeros((rows, columns, 3))
    for level in range(2, 9):
        coarse = generator.normal(0, 1, (2**level, 2**level, 3)) * 0.75**level
        layers = [Image.fromarray(coarse[..., c].astype(np.float32)) for c in range(3)]
        total += np.stack([np.asarray(i.resize((columns, rows), 3)) for i in layers], -1)
    return Image.fromarray((128 + 90 * total / total.std() / 2).clip(0, 255).astype(np.uint8))


def by_pillow(file: Path, crop: float, interpolation: str) -> NDArray[np.float64]:
    """Resize the shorter side to 64, then cut the center: the field's usual evaluation."""
    with Image.open(file) as stored:
        image = ImageOps.exif_transpose(stored).convert("RGB")
    scale, size = 64 / min(image.size), round(64 * crop)
    columns, rows = (round(scale * side) for side in image.size)
    left, top = (columns - size) // 2, (rows - size) // 2
    resized = image.resize((columns, rows), FILTERS[interpolation])
    return np.asarray(resized.crop((left, top, left + size, top + size)), np.float64)


def apart(
    file: Path, crop: float, method: Literal["bilinear", "bicubic"], channels: int = 3
) -> NDArray[np.float64]:
    """Return the differences between ours and Pillow's, in levels of 255."""
    source = Files(file.parent, [file.name], SingleLabels.blank(1, 2), ("a", "b"))
    size = round(64 * crop)
    spec = ImageSpec(image_size=size, crop=crop, interpolation=method, channels=channels)
    ours = EvaluationBatches(source, spec, 1)[0].images[0].numpy()
    return np.abs(ours - by_pillow(file, crop, method))


@pytest.mark.parametrize(
    ("size", "method", "crop"),
    [((128, 128), "bilinear", 1.0), ((333, 500), "bicubic", 0.875), ((700, 211), "bilinear", 0.875),
     ((512, 768), "bicubic", 1.0)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_images_are_resized_and_cropped_as_by_pillow(
    tmp_path: Path, kind: str, size: tuple[int, int], crop: float, method: Any
) -> None:
    """To the bit, but for the rounding of a side, and for JPEGs decoded at a reduced scale.

    At 1/2 to 1/8 of its size a JPEG keeps twice the pixels that are needed, at least.
    """
    file = tmp_path / f"image.{kind}"
    detailed(*size, seed=sum(size)).save(file, **({"quality": 92} if kind == "jpg" else {}))
    difference = apart(file, crop, method)
    exact = max(size) % min(size) == 0 or size == (512, 768)
    reduced = kind == "jpg" and min(size) >= 4 * 64
    assert difference.mean() <= (0.0 if exact else 0.3) + (0.8 if reduced else 0)
    assert difference.max() <= (0 if exact else 3) + (3 if reduced else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright_first(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    file = tmp_path / "turned.jpg"
    detailed(128, 192, seed=orientation).save(file, quality=92, exif=exif.tobytes())
    assert apart(file, 0.875, "bilinear").max() <= 1
