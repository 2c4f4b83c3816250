"""Segment Anything's image encoder in the layouts of its releases, with random numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.oracles import peers
from tests.oracles.sam import EfficientEncoder
from torch import Tensor, nn

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.load import load_check

CLOSE = {"rtol": 0, "atol": 1e-5}
SMALL: dict[str, Any] = {
    "img_size": 40, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 2, "mlp_ratio": 2,
    "use_rel_pos": True, "window_size": 4, "global_attn_indexes": (1,), "neck_chans": 8,
}  # fmt: skip


def images(side: int = 40) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def shaken(module: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return module.eval()


def timm_model(name: str, **arguments: Any) -> Any:
    return shaken(peers.timm().create_model(name, **arguments))


def meta_file(folder: Path, model: Any) -> Path:
    """The tensors of timm's model under the names of Meta's own code, with a decoder beside."""
    state = {
        f"image_encoder.{name.replace('mlp.fc', 'mlp.lin')}": tensor
        for name, tensor in model.state_dict().items()
        if not name.startswith("head.")
    }
    state |= {"prompt_encoder.not_a_point_embed.weight": torch.zeros(1, 8)}
    state |= {"mask_decoder.iou_token.weight": torch.zeros(1, 8)}
    torch.save(state, folder / "sam_vit_b_01ec64.pth")
    return folder / "sam_vit_b_01ec64.pth"


def timm_folder(folder: Path, model: Any, name: str, arguments: dict[str, Any]) -> Path:
    prepared = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "crop_pct": 1.0,
                "interpolation": "bicubic", "input_size": [3, 40, 40]}  # fmt: skip
    content = {"architecture": name, "num_classes": model.num_classes, "model_args": arguments,
               "pretrained_cfg": prepared}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content))
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder


def with_eps(model: Any, eps: float) -> Any:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps
    return model


@torch.inference_mode()
def test_metas_file_gives_metas_map(tmp_path: Path) -> None:
    """Everything is in the tensors: heads, windows, global blocks; epsilon is 1e-6."""
    theirs = timm_model("samvit_base_patch16", **SMALL, num_classes=0)
    file = meta_file(tmp_path, theirs)
    with_eps(theirs, 1e-6)
    ours = vitlab.load(file)
    config = ours.config
    assert (config.heads, config.window, config.global_blocks) == (2, 4, (1,))
    assert (config.norm_eps, config.neck, config.classes) == (1e-6, 8, 0)
    want = theirs.forward_features(images())
    torch.testing.assert_close(ours.encode(images()), want.flatten(2).transpose(1, 2), **CLOSE)
    torch.testing.assert_close(ours.features(images()), want.mean((2, 3)), **CLOSE)
    found = load_check(file)
    assert found.format == "Segment Anything"
    assert found.left_out["mask_decoder.iou_token.weight"] == "of the mask decoder"
    assert found.origins["window"] == found.origins["heads"] == "tensors"
    assert "scales the longer side" in found.notes[0]


@torch.inference_mode()
def test_the_name_of_a_file_changes_nothing(tmp_path: Path) -> None:
    theirs = timm_model("samvit_base_patch16", **SMALL, num_classes=0)
    file = meta_file(tmp_path, theirs)
    want = vitlab.load(file)(images())
    other = file.rename(tmp_path / "samvit_huge_patch16.pth")
    assert torch.equal(vitlab.load(other)(images()), want)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["samvit_base_patch16", "samvit_base_patch16_224"])
def test_timms_folder_gives_timms_logits(name: str, tmp_path: Path) -> None:
    """The second has no neck and no learned positions; its last norm has an epsilon of its own."""
    arguments = {**SMALL, "img_size": 16}  # the window is the grid: only config.json shows it
    if name.endswith("_224"):
        arguments |= {"use_abs_pos": False, "neck_chans": None}
    theirs = timm_model(name, **arguments, num_classes=5)
    with torch.no_grad():
        for weight in theirs.patch_embed.parameters():
            weight.mul_(1e-3)  # so that epsilon counts
    folder = timm_folder(tmp_path, theirs, f"{name}.sa1b", arguments)
    ours = vitlab.load(folder)
    assert ours.config.window == 4
    assert ours.config.global_blocks == (1,)
    torch.testing.assert_close(ours(images(16)), theirs(images(16)), **CLOSE)
    theirs.patch_embed.strict_img_size = False
    torch.testing.assert_close(ours(images(24)), theirs(images(24)), **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("prefix", ["", "backbone."])
def test_timms_bare_file_has_timms_epsilon(prefix: str, tmp_path: Path) -> None:
    """Whatever stands before its names: its words are those of timm's code."""
    theirs = timm_model("samvit_base_patch16", **SMALL, num_classes=5)
    state = {prefix + name: tensor for name, tensor in theirs.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    ours = vitlab.load(tmp_path / "model.safetensors")
    assert ours.config.norm_eps == 1e-5
    torch.testing.assert_close(ours(images()), theirs(images()), **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["Sam", "SamVision", "SamHQ", "SamHQVision"])
def test_transformers_folder_gives_transformers_map(kind: str, tmp_path: Path) -> None:
    transformers = peers.transformers()
    torch.manual_seed(0)
    part = kind.removesuffix("Vision")
    vision = getattr(transformers, f"{part}VisionConfig")(
        hidden_size=24, output_channels=8, num_hidden_layers=3, num_attention_heads=2,
        image_size=40, patch_size=4, mlp_dim=48, window_size=4, global_attn_indexes=[1],
        layer_norm_eps=1e-3,
    )  # fmt: skip
    if kind.endswith("Vision"):
        theirs = getattr(transformers, f"{kind}Model")(vision)
    else:
        theirs = getattr(transformers, f"{kind}Model")(
            getattr(transformers, f"{kind}Config")(vision_config=vision)
        )
    shaken(theirs).save_pretrained(tmp_path)
    ours = vitlab.load(tmp_path)
    assert (ours.config.window, ours.config.norm_eps) == (4, 1e-3)
    encoder = theirs.vision_encoder
    want = encoder(images()).last_hidden_state
    torch.testing.assert_close(ours.encode(images()), want.flatten(2).transpose(1, 2), **CLOSE)


@torch.inference_mode()
def test_a_released_config_leaves_out_defaults(tmp_path: Path) -> None:
    """Without a key, the class's own default: windows of 14, global blocks 2, 5, 8 and 11."""
    transformers = peers.transformers()
    vision = transformers.SamVisionConfig(
        hidden_size=24, output_channels=8, num_hidden_layers=3, image_size=112, patch_size=4,
        num_attention_heads=12, mlp_dim=48, use_rel_pos=False,
    )  # fmt: skip
    theirs = shaken(transformers.SamVisionModel(vision))
    theirs.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    kept = {key: content[key] for key in ("model_type", "hidden_size", "image_size", "patch_size")}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    ours = vitlab.load(tmp_path)
    assert (ours.config.window, ours.config.global_blocks, ours.config.heads) == (14, (2,), 12)
    want = theirs.vision_encoder(images(112)).last_hidden_state
    got = ours.encode(images(112)).transpose(1, 2).unflatten(2, (28, 28))
    torch.testing.assert_close(got, want, **CLOSE)
    (tmp_path / "config.json").write_text(json.dumps(kept | {"stride": 2}))
    with pytest.raises(WeightsError, match=r"unknown key stride \(value 2\) of sam_vision_model"):
        vitlab.load(tmp_path)


@torch.inference_mode()
def test_efficientsam_runs_at_1024_from_a_table_for_224(tmp_path: Path) -> None:
    theirs = shaken(EfficientEncoder(width=192, heads=3, depth=1, patch=56, table=4, neck=8))
    state = {f"image_encoder.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({"model": state | {"mask_decoder.x": torch.zeros(1)}}, tmp_path / "vitt.pt")
    found = load_check(tmp_path / "vitt.pt")
    assert found.format == "EfficientSAM"
    at_224 = vitlab.load(tmp_path / "vitt.pt", image_size=224)
    want = theirs(images(224)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(at_224.encode(images(224)), want, **CLOSE)
    other = vitlab.load(tmp_path / "vitt.pt", image_size=336)
    assert other.config.heads == 3
    want = theirs(images(336)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(other.encode(images(336)), want, **CLOSE)


def test_what_it_runs_at(tmp_path: Path) -> None:
    theirs = EfficientEncoder(width=192, heads=3, depth=1, patch=16, table=14, neck=8)
    state = {f"image_encoder.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save(state, tmp_path / "vitt.pt")
    assert vitlab.load(tmp_path / "vitt.pt").config.image_size == 1024


@pytest.mark.parametrize(("arguments", "message"), [
    ({"use_rope": True}, "unsupported model_args use_rope=True of timm"),
    ({"head_hidden_size": 8}, "unsupported model_args head_hidden_size=8 of timm"),
    ({"act_layer": "relu"}, "unsupported model_args act_layer='relu'"),
    ({"no_such": 1}, "unsupported model_args no_such=1"),
])  # fmt: skip
def test_arguments_are_represented_or_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    theirs = timm_model("samvit_base_patch16", **SMALL, num_classes=0)
    timm_folder(tmp_path, theirs, "samvit_base_patch16", SMALL | arguments)
    with pytest.raises(WeightsError, match=message):
        vitlab.load(tmp_path)


def test_what_tensors_do_not_show_is_assumed_or_asked_for(tmp_path: Path) -> None:
    """Where the window is the grid, tables are all of one length."""
    theirs = timm_model("samvit_base_patch16", **SMALL | {"img_size": 16}, num_classes=0)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    found = load_check(tmp_path / "model.safetensors")
    assert found.origins["window"] == "assumed"
    assert "--window" in found.notes[0]
    again = load_check(tmp_path / "model.safetensors", window=4, global_blocks=(1,))
    assert again.origins["window"] == "option"
    bare = {n: t for n, t in theirs.state_dict().items() if "rel_pos" not in n}
    save_file(bare, tmp_path / "bare.safetensors")
    with pytest.raises(WeightsError, match="tensors do not show heads: give --heads"):
        vitlab.load(tmp_path / "bare.safetensors")
    with pytest.raises(WeightsError, match="tensors do not show window: give --window"):
        vitlab.load(tmp_path / "bare.safetensors", heads=2)
    vitlab.load(tmp_path / "bare.safetensors", heads=2, window=4, global_blocks=(1,))
    del bare["blocks.1.norm1.weight"]
    save_file(bare, tmp_path / "bare.safetensors")
    with pytest.raises(WeightsError, match=r"tensor blocks\.1\.norm1\.weight is missing"):
        vitlab.load(tmp_path / "bare.safetensors", heads=2, window=4)


def test_other_formats_refuse_to_write_it(tmp_path: Path) -> None:
    theirs = timm_model("samvit_base_patch16", **SMALL, num_classes=0)
    model = vitlab.load(meta_file(tmp_path, theirs))
    for to in ("timm", "transformers", "google"):
        with pytest.raises(WeightsError):
            vitlab.save(model, tmp_path / to, to=to)
    plain = vitlab.create("ViT(width=24,depth=1,heads=2,mlp=48)/4", 2, 16, window=2, pool="mean")
    padded = vitlab.create("ViT(width=24,depth=1,heads=2,mlp=48)/4", 2, 16, stem_padding=1)
    for each in (plain, padded):  # nothing in their tensors shows it
        for to in ("timm", "transformers", "google"):
            with pytest.raises(WeightsError):
                vitlab.save(each, tmp_path / to, to=to)
