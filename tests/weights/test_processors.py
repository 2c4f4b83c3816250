"""preprocessor_config.json: transformers' own pixels, also of SigLIP 2 NaFlex."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import photo
from oracles import peers
from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.paths import Names
from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig
from vitlab.models.packed import Packed
from vitlab.weights.formats.transformers.families import FAMILIES
from vitlab.weights.formats.transformers.processor import CLASSES, read_processor
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


def test_sides_go_by_their_names() -> None:
    """Whatever their order in the file."""
    turned = {"width": 64, "height": 32}
    for family, more in (("dinov3_vit", {}), ("deit", {"crop_size": turned})):
        assert read_processor({"size": turned} | more, FAMILIES[family]).size == (32, 64)


def prepared(config: ModelConfig, picture: Path) -> torch.Tensor:
    source = Images.of(
        ImageFiles(picture.parent, [picture.name]), SingleLabels.blank(1, 2), ("a", "b")
    )
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
    ({"do_center_crop": True, "crop_size": 64}, "crop_size=64 of size={'height': 48, 'width': 48}"),
    ({"size": [96, 48], "do_center_crop": True, "crop_size": 48}, "crop_size=48 of size={'heigh"),
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


def test_a_rounded_share_of_255_is_one(folder: Path) -> None:
    for file in folder.glob("*processor*"):
        file.unlink()
    content = {"image_processor_type": "ViTImageProcessor", "size": 48, "image_mean": [0.3] * 3}
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(content | {"rescale_factor": 0.00392157}))
    assert load_check(folder).config["mean"] == [0.3] * 3


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


SHAPES = [(60, 80), (80, 40), (128, 18), (32, 32), (26, 114), (60, 80)]
SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "patch_size": 8, "num_patches": 16,
}  # fmt: skip


def pictures(folder: Path) -> list[str]:
    folder.mkdir()
    paths = []
    for number, (rows, columns) in enumerate(SHAPES):
        photo(number, rows, columns).save(folder / f"{number}.png")
        paths.append(str(folder / f"{number}.png"))
    return paths


def saved(folder: Path, classes: int = 0) -> torch.nn.Module:
    """A random model of transformers, and the processor beside it."""
    transformers = peers.transformers()
    torch.manual_seed(0)
    if classes:
        config = transformers.Siglip2Config(vision_config=SMALL, num_labels=classes)
        model = transformers.Siglip2ForImageClassification(config)
    else:
        model = transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**SMALL))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    model.eval().save_pretrained(folder)
    prepared = {
        "image_processor_type": "Siglip2ImageProcessor", "patch_size": 8, "max_num_patches": 20,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    return model


@pytest.mark.parametrize("classes", [0, 5])
def test_features_are_those_of_transformers_with_its_mask(tmp_path: Path, classes: int) -> None:
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    theirs, paths = saved(tmp_path / "model", classes), pictures(tmp_path / "images")
    images = [np.array(Image.open(path)) for path in paths]
    found = Siglip2ImageProcessorPil(patch_size=8, max_num_patches=20)(images, return_tensors="pt")
    with torch.inference_mode():
        out = theirs(**found)
        want = out.logits if classes else out.pooler_output
    ours = vitlab.load(tmp_path / "model")
    config = ours.config
    assert (config.fit, config.tokens, config.image_size) == ("native", 20, 32)
    labels = SingleLabels.blank(len(paths), 2)
    source = Images.of(ImageFiles(Path(), Names.of(paths)), labels, ("a", "b"))
    batch = EvaluationBatches(source, config, len(paths))[0]
    assert isinstance(batch.images, Packed)
    assert [list(grid) for grid in batch.images.grids] == found["spatial_shapes"].tolist()
    with torch.inference_mode():
        packed = normalize(batch.images, config)
        got = ours(packed) if classes else ours.features(packed)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))
    assert vitlab.load(tmp_path / "model", fit="crop").config.fit == "crop"


@pytest.mark.parametrize("folder", [False, True])
def test_timms_names_of_the_same_model(tmp_path: Path, folder: bool) -> None:
    timm = peers.timm()
    theirs = timm.create_model(
        "naflexvit_base_patch16_siglip", embed_dim=192, num_heads=3, depth=2, mlp_ratio=0.5
    ).eval()
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    if folder:
        timm.models.save_for_hf(theirs, tmp_path, model_args={"depth": 2})
    else:
        torch.save(theirs.state_dict(), tmp_path / "model.pth")
    ours = vitlab.load(tmp_path if folder else tmp_path / "model.pth", heads=3)
    config = ours.config
    assert (config.fit, config.tokens, config.gelu) == ("native", 256, "tanh")
    grids = [(3, 5), (4, 4), (6, 2)]
    images = [torch.randn(3, 16 * rows, 16 * columns) for rows, columns in grids]
    patches, valid = torch.zeros(3, 16, 768), torch.zeros(3, 16, dtype=torch.bool)
    coordinates = torch.zeros(3, 16, 2, dtype=torch.int64)
    for number, (rows, columns) in enumerate(grids):
        cut = images[number].unflatten(2, (columns, 16)).unflatten(1, (rows, 16))
        count = rows * columns
        patches[number, :count] = cut.permute(1, 3, 2, 4, 0).reshape(count, 768)
        valid[number, :count] = True
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        coordinates[number, :count] = places
    with torch.inference_mode():
        want = theirs({"patches": patches, "patch_coord": coordinates, "patch_valid": valid})
        got = ours.features(Packed.of(images, 16))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))


def test_other_models_of_timms_naflex_are_refused(tmp_path: Path) -> None:
    timm = peers.timm()
    for name in ("naflexvit_base_patch16_gap",):
        theirs = timm.create_model(name, embed_dim=192, num_heads=3, depth=1, mlp_ratio=0.5)
        torch.save(theirs.state_dict(), tmp_path / "model.pth")
        with pytest.raises(WeightsError, match="no tensor shows how they are resized"):
            vitlab.load(tmp_path / "model.pth")


def test_other_tools_are_told_of_native_sizes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = vitlab.create("ViT-Ti/16", 3, 32, depth=1, fit="native", tokens=9)
    for format in ("timm", "transformers"):
        caplog.clear()
        vitlab.save(model, tmp_path / format, to=format)
        assert re.search(f"{format} cannot represent fit='native', .*tokens=9", caplog.text)
    own = vitlab.save(model, tmp_path / "own")
    assert vitlab.load(own).config.tokens == 9
    assert vitlab.load(own, tokens=16).config.fit == "native"
    assert vitlab.load(own, fit="squash").config.fit == "squash"


@pytest.mark.parametrize("kind", ["plain", "registers", "iBOT"])
def test_own_files_of_dinov2_and_ibot_at_another_size(tmp_path: Path, kind: str) -> None:
    """Plain models by the factor (n + 0.1) / N, those with registers antialiased to a size."""
    name = {"plain": "vit_small_patch14_dinov2", "registers": "vit_small_patch14_reg4_dinov2",
            "iBOT": "vit_tiny_patch16_224"}[kind]  # fmt: skip
    patch = 16 if kind == "iBOT" else 14
    shape = {"embed_dim": 64, "num_heads": 1, "depth": 1, "img_size": 7 * patch}
    theirs = peers.timm().create_model(name, **shape).eval()
    tensors = {key: torch.randn_like(value) / 5 for key, value in theirs.state_dict().items()}
    if kind == "registers":
        tensors["register_tokens"] = tensors.pop("reg_token")
    tensors["masked_embed" if kind == "iBOT" else "mask_token"] = torch.zeros(1, 64)
    tensors["pos_embed"] = torch.randn(1, 50, 64) / 5  # with a row for the class token
    torch.save(tensors, tmp_path / "own.pth")
    model = vitlab.load(tmp_path / "own.pth", image_size=4 * patch, heads=1)
    table = tensors["pos_embed"][:, 1:].reshape(1, 7, 7, 64).permute(0, 3, 1, 2)
    factor = {"scale_factor": (4 + 0.1) / 7}
    how = {"size": (4, 4), "antialias": True} if kind == "registers" else factor
    want = torch.nn.functional.interpolate(table, mode="bicubic", **how)
    got = model.positions[0].at(model.config.grid).table  # type: ignore[union-attr, index]
    torch.testing.assert_close(got[0, -16:], want[0].flatten(1).T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("crop", [0.5, 0.7, 0.875, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("center", ["round", "floor"])
def test_what_is_called_lost_are_other_pixels(
    crop: float, fit: str, center: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """224 pixels of crop=0.9 are the center of 248 in both."""
    chosen = {"depth": 1, "crop": crop, "fit": fit, "center": center, "interpolation": "bicubic"}
    model = vitlab.create("ViT-Ti/16", 3, 48, **chosen)
    vitlab.save(model, tmp_path / "theirs", to="transformers")
    again = vitlab.load(tmp_path / "theirs")
    draw = np.random.default_rng(0)
    sizes = [(60, 80), (61, 83), (83, 61), (50, 97), (97, 52), (48, 67), (53, 71), (50, 51)]
    images = [draw.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    same = [torch.equal(*(vitlab.preprocess(each)(image) for each in (model, again)))
            for image in images]  # fmt: skip
    assert all(same) == ("cannot represent" not in caplog.text)
    assert "crop=" not in caplog.text
