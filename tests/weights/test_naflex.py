"""SigLIP 2 NaFlex: images of their own aspect ratio, from the file to the features."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import photo
from oracles import peers
from vitlab.data.augment.augment import normalize
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.sources.folders import Files
from vitlab.data.sources.paths import Names
from vitlab.errors import WeightsError
from vitlab.models.packed import Packed

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
    source = Files(Path(), Names.of(paths), labels, ("a", "b"))
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
