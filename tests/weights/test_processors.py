"""preprocessor_config.json: the same pixels as transformers' own processors make of a picture."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from oracles import peers
from vitlab.data.augment.augment import normalize
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.sources.folders import Files
from vitlab.models.config import ModelConfig
from vitlab.weights.formats.transformers.processor import CLASSES
from vitlab.weights.load import load_check

MODULES = {"Bit": "bit", "Beit": "beit", "CLIP": "clip", "ChineseCLIP": "chinese_clip",
           "ConvNext": "convnext", "DeiT": "deit", "Siglip": "siglip", "Siglip2": "siglip2",
           "ViT": "vit"}  # fmt: skip
SQUARE = {"height": 48, "width": 48}
GRAY = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.4, 0.3]}


def processor(kind: str, **choices: Any) -> Any:
    """One of transformers' own, on Pillow."""
    peers.transformers()
    name = MODULES[kind]
    module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    return getattr(module, f"{kind}ImageProcessorPil")(**choices)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smooth one of 3:2."""
    small = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    file: Path = tmp_path_factory.mktemp("picture") / "picture.png"
    Image.fromarray(small).resize((180, 120), Image.Resampling.BICUBIC).save(file)
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT for 48 pixels."""
    transformers = peers.transformers()
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=48, patch_size=8,
    )  # fmt: skip
    place: Path = tmp_path_factory.mktemp("model")
    transformers.ViTModel(config).save_pretrained(place)
    return place


def prepared(config: ModelConfig, picture: Path) -> torch.Tensor:
    source = Files(picture.parent, [picture.name], SingleLabels.blank(1, 2), ("a", "b"))
    images = EvaluationBatches(source, config, 1)[0].images
    return normalize(torch.as_tensor(images), config)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "squash": ("ViT", {"size": SQUARE}),
    "DeiT: squash, then crop": (
        "DeiT", {"size": {"height": 56, "width": 56}, "crop_size": SQUARE},
    ),
    "DeiT, integers": ("DeiT", {"size": 56, "crop_size": 48}),
    "shorter side, then crop": (
        "Bit", {"size": {"shortest_edge": 56}, "crop_size": SQUARE, **GRAY},
    ),
    "not normalized": ("Beit", {"size": SQUARE, "do_normalize": False}),
    "not rescaled": ("ViT", {"size": SQUARE, "do_rescale": False}),
    "rescaled twice as far": ("ViT", {"size": SQUARE, "rescale_factor": 1 / 127.5, **GRAY}),
    "ConvNeXt's share": ("ConvNext", {"size": {"shortest_edge": 48}, "crop_pct": 0.8}),
}  # fmt: skip


@pytest.mark.parametrize(("number", "case"), [*enumerate(CASES)])
def test_pixels_are_those_of_transformers(
    number: int, case: str, folder: Path, picture: Path
) -> None:
    """Of the file that an image processor writes, and of the one that a processor writes."""
    (kind, choices), nested = CASES[case], number % 2
    own = processor(kind, **choices)
    for file in folder.glob("*processor*"):
        file.unlink()
    content = own.to_dict() | choices  # integers as integers
    if nested:
        content = {"image_processor": content, "processor_class": "CLIPProcessor"}
    name = "processor_config.json" if nested else "preprocessor_config.json"
    (folder / name).write_text(json.dumps(content))
    found = load_check(folder)
    assert found.notes == ()
    assert found.origins["mean"] == found.origins["fit"] == "file"
    with Image.open(picture) as image:
        want = own(image.convert("RGB"), return_tensors="pt")["pixel_values"]
    got = prepared(vitlab.load(folder).config, picture)
    assert want.shape == got.shape
    levels = (want - got).abs() * torch.tensor(found.config["std"])[:, None, None] * 255
    assert levels.mean() < 0.5


@pytest.mark.parametrize("kind", MODULES)
def test_defaults_are_those_of_the_class(kind: str) -> None:
    """What a file leaves out."""
    own, table = processor(kind).to_dict(), CLASSES[kind]
    for key in table.keys() & own.keys() - {"crop_size"}:
        if own[key] is not None:
            same = list(own[key]) if isinstance(own[key], tuple) else own[key]
            assert table[key] == same, key
    if own.get("do_center_crop"):
        assert table["crop_size"] == own["crop_size"]


NOTED = [
    ({"resample": 1}, "unsupported resample=1 (lanczos): bicubic"),
    ({"do_flip_channel_order": True}, "do_flip_channel_order=True is unsupported"),
    ({"surprising": 3}, "surprising=3 is unsupported"),
    ({"size": {"longest_edge": 99}}, "size={'longest_edge': 99} is unsupported"),
    ({"size": {"shortest_edge": 48, "longest_edge": 99}}, "longest_edge of size="),
    ({"image_processor_type": "OwnImageProcessor"}, "unknown image processor OwnImageProcessor"),
    ({"size": {"height": 32, "width": 32}}, "prepares images at 32x32, but the model takes"),
    ({"do_resize": False}, "do_resize is false"),
]


@pytest.mark.parametrize(("content", "note"), NOTED)
def test_what_is_done_otherwise_is_told(content: dict[str, Any], note: str, folder: Path) -> None:
    for file in folder.glob("*processor*"):
        file.unlink()
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({"image_processor_type": "ViTImageProcessor", "size": 48} | content))
    assert any(note in each for each in load_check(folder).notes)


def test_without_a_file_a_vit_is_assumed(folder: Path) -> None:
    """Models of several papers are saved as this family, each with a normalization of its own."""
    for file in folder.glob("*processor*"):
        file.unlink()
    found = load_check(folder)
    assert found.origins["mean"] == "assumed"
    assert any("--mean" in note for note in found.notes)


@pytest.mark.parametrize(("fit", "crop"), [("crop", 0.75), ("squash", 0.75)])
def test_what_is_written_prepares_the_same_pixels(
    fit: str, crop: float, picture: Path, tmp_path: Path
) -> None:
    choices = {"fit": fit, "crop": crop, "interpolation": "bicubic", "mean": 0.4, "std": 0.3}
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", 3, 48, **choices)
    vitlab.save(model, tmp_path / "model", to="transformers")
    content = json.loads((tmp_path / "model" / "preprocessor_config.json").read_text())
    own = processor(content.pop("image_processor_type").removesuffix("ImageProcessor"), **content)
    with Image.open(picture) as image:
        want = own(image.convert("RGB"), return_tensors="pt")["pixel_values"]
    got = prepared(model.config, picture)
    assert want.shape == got.shape
    assert (want - got).abs().mean() * 0.3 * 255 < 0.5
