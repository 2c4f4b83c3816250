"""Labeled images of one size as two arrays: from Parquet, by pyarrow, or from .npz files."""

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Images:
    """Images of one size, uint8 (N, H, W, C), and their labels, int64 (N,), on a device."""

    pixels: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, begin: int, end: int) -> "Images":
        """Return the images from one number to another."""
        return Images(self.pixels[begin:end], self.labels[begin:end])

    def to(self, device: str) -> "Images":
        """Return them on another device."""
        return Images(self.pixels.to(device), self.labels.to(device))


def read(place: Path) -> dict[str, Images]:
    """Return the training and the test images of a folder or of one .npz file.

    Raises:
        SystemExit: neither is there, or Parquet files without pyarrow.
    """
    if place.suffix == ".npz":
        with np.load(place) as arrays:
            given = [arrays[name] for name in ARRAYS]
        return {"train": as_images(*given[:2]), "test": as_images(*given[2:])}
    found = {}
    for split in ("train", "test"):
        kinds = ("npz", "parquet")
        files = [file for kind in kinds for file in sorted(place.glob(f"*{split}*.{kind}"))]
        if not files:
            sys.exit(f"{place} has no *{split}*.parquet or *{split}*.npz: name a folder with both")
        found[split] = read_npz(files[0]) if files[0].suffix == ".npz" else read_parquet(files[0])
    return found


def read_npz(file: Path) -> Images:
    """Read a file of two arrays: images first, then labels."""
    with np.load(file) as arrays:
        pixels, labels = (arrays[name] for name in arrays.files[:2])
    return as_images(pixels, labels)


def read_parquet(file: Path) -> Images:
    """Read a table whose first column holds encoded images, the second their labels."""
    try:
        from pyarrow import parquet
    except ImportError:
        sys.exit(f"{file} needs pyarrow: install it, or convert the data to .npz with --convert")
    rows = parquet.read_table(file)
    column, labels = (rows.column(number).to_pylist() for number in (0, 1))
    stored = (each["bytes"] if isinstance(each, dict) else each for each in column)
    pixels = [np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in stored]
    return as_images(np.stack(pixels), np.asarray(labels))


def as_images(pixels: Any, labels: Any) -> Images:
    """Return arrays of images and labels as tensors."""
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))


def convert(data: dict[str, Images], target: Path) -> None:
    """Write the images as one .npz file."""
    train, test = data["train"], data["test"]
    tensors = (train.pixels, train.labels, test.pixels, test.labels)
    arrays = {name: each.numpy() for name, each in zip(ARRAYS, tensors, strict=True)}
    np.savez_compressed(target, **arrays)  # type: ignore[arg-type]
