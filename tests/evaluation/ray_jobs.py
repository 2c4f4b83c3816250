"""What is computed on Ray: a small model with batches of 16, and 240 photographs."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import photo_folder

PART = 16  # images: one batch of this model


def small_model() -> vitlab.VisionTransformer:
    torch.manual_seed(0)
    names = ("blue", "green", "red")
    return vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/32", 3, 384, labels=names).eval()


def some_photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three classes; one of the images is damaged."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    photo_folder(folder, {"red": 80, "green": 80, "blue": 80})
    (folder / "green" / "007.png").write_bytes(b"no image")
    return str(folder)


def embed(model: vitlab.VisionTransformer, photos: str, out: Path, **how: Any) -> dict[str, Any]:
    return vitlab.embed(model, photos, out, **{"part_images": PART, "workers": 0} | how)
