"""What evaluation shows a model, beside the processors of transformers and the transforms of timm.

Both use Pillow: they resize to whole pixels and crop whole pixels, each with its own rounding.
"""

import functools
import importlib
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import vitlab
from oracles import peers
from vitlab.data.decode.resized_box import resized_box
from vitlab.data.decode.stored import PixelImage
from vitlab.data.loading.crops import center, fitted_image
from vitlab.images import ImageSpec
from vitlab.weights.formats.transformers.families import VIT
from vitlab.weights.formats.transformers.processor import read_processor

SIZES = [tuple(map(int, each)) for each in np.random.default_rng(0).integers(64, 640, (24, 2))]


@functools.cache
def pictures() -> list[Image.Image]:
    """One of each of the sizes, with details."""
    found = []
    for rows, columns in SIZES:
        draw = np.random.default_rng((rows, columns))
        small = draw.integers(0, 256, (rows // 6, columns // 6, 3), np.uint8)
        found.append(Image.fromarray(small).resize((columns, rows), Image.Resampling.BICUBIC))
    return found


def by_timm(spec: ImageSpec) -> Any:
    data = peers.timm().data
    size: Any = {"input_size": (3, *spec.size), "crop_pct": spec.crop}
    mode = "squash" if spec.fit == "squash" else "center"
    made = data.create_transform(
        **size, interpolation=spec.interpolation, normalize=False, crop_mode=mode
    )
    return lambda image: made(image).permute(1, 2, 0).numpy()


def by_transformers(kind: str, **choices: Any) -> Any:
    peers.transformers()
    module = importlib.import_module(f"transformers.models.{kind}.image_processing_pil_{kind}")
    names = {"clip": "CLIP", "vit": "ViT", "deit": "DeiT"}
    made = getattr(module, f"{names.get(kind, kind.title())}ImageProcessorPil")(
        do_normalize=False, do_rescale=False, **choices
    )
    return lambda image: np.transpose(
        made(image, return_tensors="np")["pixel_values"][0], (1, 2, 0)
    )


def levels(spec: ImageSpec, by: Any) -> NDArray[np.int64]:
    """Differences of all pixels of all pictures: ours less theirs."""
    found = []
    for image in pictures():
        ours = fitted_image(PixelImage(np.asarray(image), ""), spec, center(spec)).astype(int)
        found.append((ours - np.asarray(by(image)).astype(int)).ravel())
    return np.concatenate(found)


CASES: dict[str, ImageSpec] = {
    "usual": ImageSpec(image_size=56, crop=0.875, interpolation="bicubic"),
    "a share that no whole number has": ImageSpec(image_size=56, crop=0.95),
    "all": ImageSpec(image_size=48, interpolation="bicubic"),
    "odd": ImageSpec(image_size=49, crop=0.9),
    "rectangle": ImageSpec(image_size=(32, 64), crop=0.9, interpolation="bicubic"),
    "squashed": ImageSpec(image_size=48, crop=0.9, fit="squash", interpolation="bicubic"),
}


@pytest.mark.parametrize("case", CASES)
def test_pixels_are_timms(case: str) -> None:
    apart = levels(CASES[case], by_timm(CASES[case]))
    assert np.abs(apart).max() <= 1
    assert (apart == 0).mean() > 0.99


@pytest.mark.parametrize(
    ("kind", "crop"), [("clip", 48), ("bit", 55), ("deit", 48), ("deit", 55), ("siglip", 0)]
)
def test_pixels_are_those_of_transformers(kind: str, crop: int) -> None:
    square = {"height": 56, "width": 56}
    inner = {"height": crop, "width": crop}
    choices: dict[str, Any] = {"size": square, "resample": 3}
    if kind in ("clip", "bit"):
        choices |= {"size": {"shortest_edge": 56}, "crop_size": inner, "do_center_crop": True}
    elif kind == "deit":
        choices |= {"crop_size": inner, "do_center_crop": True}
    names = {"clip": "CLIP", "vit": "ViT", "deit": "DeiT"}
    name = f"{names.get(kind, kind.title())}ImageProcessor"
    read = read_processor({"image_processor_type": name, **choices}, VIT)
    known = {key: read.facts.values[key] for key in ("crop", "fit", "interpolation")}
    spec = ImageSpec(image_size=read.size, center="floor", **known)
    apart = levels(spec, by_transformers(kind, **choices))
    assert np.abs(apart).max() <= 1
    assert (apart == 0).mean() > 0.99


def test_offsets_are_rounded_as_by_each_library() -> None:
    """3 pixels to spare: timm starts at 2, transformers at 1."""
    assert resized_box(8, 11, ImageSpec(image_size=8))[0] == 2
    assert resized_box(8, 11, ImageSpec(image_size=8, center="floor"))[0] == 1
    assert resized_box(8, 13, ImageSpec(image_size=8))[0] == 2


def test_a_line_of_pixels_takes_no_more_memory_than_the_result() -> None:
    spec = ImageSpec(image_size=224, crop=0.875)
    for shape in ((60_000, 1, 3), (1, 60_000, 3)):
        pixels = PixelImage(np.full(shape, 7, np.uint8), "")
        assert (fitted_image(pixels, spec, center(spec)) == 7).all()


@pytest.mark.parametrize("where", ["round", "floor"])
@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("size", [32, (24, 48), (64, 16)])
def test_a_batch_is_prepared_as_each_image(where: Any, fit: Any, size: Any) -> None:
    """On a device, as inside an exported graph."""
    spec = ImageSpec(image_size=size, crop=0.9, fit=fit, center=where, interpolation="bicubic")
    prepare = vitlab.preprocess(spec)
    for rows, columns in (*SIZES[:8], (33, 75), (75, 33), (98, 34), (101, 32), (104, 28)):
        draw = np.random.default_rng((rows, columns))
        image = draw.integers(0, 256, (rows, columns, 3), np.uint8)
        batch = torch.from_numpy(image).permute(2, 0, 1)[None]
        torch.testing.assert_close(prepare(batch), prepare(image), rtol=0, atol=1e-6)
