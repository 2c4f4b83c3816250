"""Models that ours is not, each told by its tensors; and what a model keeps of its images."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.oracles import peers

import vitlab
from vitlab.errors import WeightsError
from vitlab.evaluation.unlike import fit_unlike
from vitlab.models.model import Model
from vitlab.weights.assembly import empty
from vitlab.weights.formats.format_api import Hints
from vitlab.weights.formats.unsupported import reads
from vitlab.weights.sharded import UNLIKE
from vitlab.weights.source import StoredTensors

FAMILIES = {
    "swin_tiny_patch4_window7_224": "a Swin Transformer",
    "swinv2_tiny_window8_256": "a Swin Transformer",
    "hiera_tiny_224": "Hiera",
    "sam2_hiera_tiny": "the Hiera of SAM 2",
    "samvit_base_patch16_224": "Segment Anything's encoder or ViTDet",
    "xcit_nano_12_p16_224": "XCiT",
    "davit_tiny": "DaViT",
    "convnext_atto": "ConvNeXt",
    "mvitv2_tiny": "MViT",
    "pvt_v2_b0": "PVT, Twins or Segformer",
    "twins_svt_small": "PVT, Twins or Segformer",
    "levit_128": "LeViT",
    "cait_xxs24_224": "CaiT",
    "mixer_s16_224": "an MLP-Mixer",
    "volo_d1_224": "VOLO",
    "pit_ti_224": "PiT",
    "convit_tiny": "ConViT",
    "resnet18": "a ResNet of torchvision or timm",
    "mobilenetv3_small_050": "a convolutional network",
    "edgenext_xx_small": "ConvNeXt or its like",
    "efficientvit_b0": "a network in stages",
}
OURS = (
    "vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224", "vit_small_patch16_18x2_224",
    "deit3_small_patch16_224", "beitv2_base_patch16_224", "eva02_tiny_patch14_224",
    "vit_small_patch16_dinov3", "vit_pe_core_tiny_patch16_384",
)  # fmt: skip


def source_of(name: str) -> StoredTensors:
    with torch.device("meta"):
        state = peers.timm().create_model(name).state_dict()
    shapes = {f"module.{key}": tuple(tensor.shape) for key, tensor in state.items()}
    return StoredTensors(Path("model.pth"), "pickle", shapes, lambda key: torch.zeros(0))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_told_by_its_tensors(name: str) -> None:
    with pytest.raises(WeightsError) as caught:
        reads(source_of(name), Hints(), empty)
    line = str(caught.value)
    assert line.startswith(f"model.pth is {FAMILIES[name]}")
    assert "(tensor module." in line
    assert "\n" not in line


RADIO = {
    "radio_model.model.patch_generator.cls_token.token": torch.zeros(8, 4),
    "radio_model.model.patch_generator.embedder.weight": torch.zeros(4, 12),
    "radio_model.model.blocks.0.attn.qkv.weight": torch.zeros(12, 4),
}


def test_radio_is_told_by_its_tensors(tmp_path: Path) -> None:
    save_file(RADIO, tmp_path / "radio.safetensors")
    with pytest.raises(WeightsError, match=r"is RADIO or C-RADIO .* token for each of its teach"):
        vitlab.load(tmp_path / "radio.safetensors")


def test_no_vision_transformer_is_mistaken() -> None:
    for name in OURS:
        assert reads(source_of(name), Hints(), empty) is None, name


def test_load_says_so_whatever_the_file_is_called(tmp_path: Path) -> None:
    patch, block = "patch_embed.proj.weight", "encoder.module.backbone."
    swin = {patch: torch.zeros(8, 3, 4, 4)}
    swin["layers.0.blocks.0.attn.relative_position_bias_table"] = torch.zeros(9, 1)
    video = {f"{block}{patch}": torch.zeros(8, 3, 2, 4, 4)}
    video[f"{block}blocks.0.norm1.weight"] = torch.zeros(8)
    for tensors, words in (
        (swin, r"is a Swin Transformer .* shifted windows and stages"),
        (video, r"is V-JEPA, VideoMAE, .* patches with a length"),
        ({"w": torch.zeros(1)}, r"unsupported weight format .tensors w, ….: docs/wei"),
    ):
        save_file(tensors, tmp_path / "vit_base_patch16_224.safetensors")
        with pytest.raises(WeightsError, match=words):
            vitlab.load(tmp_path / "vit_base_patch16_224.safetensors")


BLOCK = {
    "patch_embed.proj.weight": (8, 3, 4, 4), "blocks.0.norm1.weight": (8,),
    "blocks.0.attn.qkv.weight": (24, 8), "blocks.0.attn.proj.weight": (8, 8),
    "blocks.0.mlp.fc1.weight": (8, 8), "blocks.0.mlp.fc2.weight": (8, 8),
}  # fmt: skip
SAM: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "Segment Anything's encoder or ViTDet (tensor image_encoder.blocks.0.attn.rel_pos_h), which "
    "has windows of attention": ("image_encoder.", "blocks.0.attn.rel_pos_h", (27, 4)),
    "Segment Anything's encoder or ViTDet (tensor vision_encoder.layers.0.attn.rel_pos_h), which "
    "has windows": ("vision_encoder.", "layers.0.attn.rel_pos_h", (27, 4)),
    "EfficientSAM (tensor image_encoder.neck.0.weight), which has a neck of convolutions": (
        "image_encoder.", "neck.0.weight", (8, 8, 1, 1),
    ),
    "unsupported model: it has a neck of convolutions, as in EfficientSAM": (
        "", "neck.0.weight", (8, 8, 1, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", SAM)
def test_encoders_of_segment_anything_are_refused(message: str, tmp_path: Path) -> None:
    """In Meta's names, in those of transformers and EfficientSAM's, whole or the encoder alone."""
    prefix, name, shape = SAM[message]
    state = {prefix + key: torch.zeros(size) for key, size in (BLOCK | {name: shape}).items()}
    torch.save({"model": state}, tmp_path / "encoder.pth")
    with pytest.raises(WeightsError) as caught:
        vitlab.load(tmp_path / "encoder.pth")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


NAME = "ViT(width=16,depth=1,heads=2,mlp=32)/8"


def knowing(seed: int = 0) -> Model:
    """A model that knows how far an image is from its training images."""
    generator = torch.Generator().manual_seed(seed)
    model: Model = vitlab.create(NAME, 3, 16, generator=generator)
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(60, 16)).astype(np.float32), np.arange(60) % 3
    model.unlike = fit_unlike(x, y, np.arange(60) // 3 % 5, 1)
    return model


def kept(model: Model) -> dict[str, torch.Tensor]:
    assert model.unlike is not None
    return model.unlike.tensors


def same(one: Model, other: Model) -> bool:
    return all(torch.equal(each, kept(other)[name]) for name, each in kept(one).items())


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    model = knowing()
    folder = vitlab.save(model, tmp_path / "model")
    again = vitlab.load(folder)
    assert same(again, model)
    assert same(vitlab.load(vitlab.save(again, tmp_path / "again")), model)
    assert same(model.resize(32), model)
    assert vitlab.load(folder, classes=5).unlike is None  # another classifier
    assert vitlab.load(folder / "model.safetensors").unlike is not None
    vitlab.save(vitlab.create(NAME, 3, 16), folder)  # in its place
    assert not (folder / UNLIKE).exists()
    assert vitlab.load(folder).unlike is None
    x, y, folds = np.eye(12, 8, dtype=np.float32), np.arange(12) % 3, np.arange(12) % 2
    for wide, layer in ((x, 1), (np.tile(x, 2), 5)):  # of another width, and of no layer
        model.unlike = fit_unlike(wide, y, folds, layer)
        with pytest.raises(
            WeightsError, match=rf"unlike\.axes .* of layer {layer} does not fit ViT"
        ):
            vitlab.load(vitlab.save(model, folder))


def test_a_delta_has_it(tmp_path: Path) -> None:
    base = vitlab.load(vitlab.save(vitlab.create(NAME, 0, 16), tmp_path / "base"))
    model = base.remade(base.config, base.state_dict())
    model = vitlab.load(tmp_path / "base", classes=3)
    model.unlike = knowing().unlike
    change = vitlab.delta(model, base)
    assert same(change.apply(base), model)
    assert same(vitlab.load(change.save(tmp_path / "own.safetensors")), model)


def test_other_formats_leave_it_out_and_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model: Model = vitlab.create(NAME, 3, 16, labels=("a", "b", "c"))
    model.unlike = knowing().unlike
    folder = vitlab.save(model, tmp_path / "timm", to="timm")
    assert "how far an image is from its training images: left out" in caplog.text
    assert vitlab.load(folder).unlike is None


@pytest.mark.parametrize("harm", ["bit", "cut", "nan", "shape", "other", "text"])
def test_a_damaged_file_is_refused_in_one_line(harm: str, tmp_path: Path) -> None:
    folder = vitlab.save(knowing(), tmp_path / "model")
    file = folder / UNLIKE
    tensors, content = load_file(file), file.read_bytes()
    axes = tensors["unlike.axes"]
    match harm:
        case "bit":
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "cut":
            file.write_bytes(content[:-9])
        case "nan":
            save_file(tensors | {"unlike.axes": axes * torch.nan}, file)
        case "shape":
            save_file(tensors | {"unlike.axes": axes[:8].clone()}, file)
        case "other":
            other = vitlab.save(knowing(1), tmp_path / "other")
            shutil.copy(other / UNLIKE, file)
        case "text":
            file.write_text("no tensors")
    with pytest.raises(WeightsError) as caught:
        vitlab.load(folder)
    assert "\n" not in str(caught.value)
    assert UNLIKE in str(caught.value)
