"""Families beyond the plain Vision Transformer, as timm has them: other norms, positions, pools."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from oracles import peers
from vitlab.errors import WeightsError
from vitlab.weights.load import load_check
from weights.test_timm_files import close, randomized, written

CASES: dict[str, dict[str, Any]] = {
    "eva02_tiny_patch14_224": {"img_size": 56},
    "eva02_small_patch14_336": {"img_size": 42, "num_classes": 7},
    "eva02_base_patch14_448": {"depth": 1, "img_size": 42, "num_classes": 7},
    "eva02_base_patch16_clip_224": {"depth": 1, "img_size": 48},
    "eva02_enormous_patch14_clip_224": {"img_size": 28, "embed_dim": 64, "num_classes": 5},
    "vit_pe_core_tiny_patch16_384": {"img_size": 48, "num_classes": 5},
    "vit_pe_core_gigantic_patch14_448": {"img_size": 28, "embed_dim": 192, "num_classes": 5},
    "vit_pe_lang_large_patch14_448": {"depth": 1, "img_size": 28, "embed_dim": 192},
    "vit_pe_spatial_tiny_patch16_512": {"img_size": 48},
    "vit_small_patch16_rope_224": {"img_size": 48},
    "vit_small_patch16_rope_mixed_224": {"img_size": 48},
    "vit_small_patch16_rope_ape_224": {"img_size": 48},
    "vit_small_patch16_rope_mixed_ape_224": {"img_size": 48},
    "vit_medium_patch16_rope_reg1_gap_256": {"img_size": 48},
    "aimv2_large_patch14_224": {"depth": 1, "img_size": 28, "num_classes": 5},
    "beit3_base_patch16_224": {"depth": 1, "img_size": 32},
    "beit_base_patch16_224": {"depth": 1, "img_size": 32, "use_abs_pos_emb": True},
    "vit_base_patch16_rpn_224": {"img_size": 32, "embed_dim": 96},
    "test_vit3": {"img_size": 32},
    "test_vit4": {"img_size": 32},
}
# A file without a name or configuration beside it that is no other family's.
TELLING = {
    "eva02_tiny_patch14_224": {"rope_grid": 16, "rope_kind": "grid", "heads": 3},
    "eva02_base_patch14_448": {"rope_grid": 16, "heads": 12, "norm_eps": 1e-6},
    "eva02_base_patch16_clip_224": {"rope_grid": 16, "norm_inner_attention": True},
    "vit_small_patch16_rope_mixed_224": {"rope_kind": "mixed"},
    "vit_small_patch16_rope_mixed_ape_224": {"rope_kind": "mixed", "positions": "1d+rope"},
    "aimv2_large_patch14_224": {"heads": 8, "norm": "rms", "norm_eps": 1e-5},
    "beit3_base_patch16_224": {"norm_eps": 1e-5, "norm_inner_mlp": True},
    "beit_base_patch16_224": {"positions": "1d+bias"},
}


def a_model(name: str, **more: Any) -> nn.Module:
    return randomized(peers.timm().create_model(name, **{"depth": 2} | CASES[name] | more))


def some_images(size: int | tuple[int, int]) -> Tensor:
    rows, columns = (size, size) if isinstance(size, int) else size
    return torch.randn(2, 3, rows, columns, generator=torch.Generator().manual_seed(3))


def agree(model: Any, other: Any, images: Tensor) -> None:
    with torch.inference_mode():
        tokens = other.forward_features(images)
        close(model.encode(images), tokens)
        close(model(images), other(images))
        close(model.features(images), other.forward_head(tokens, pre_logits=True))
        close(vitlab.fuse(model)(images), other(images))


@pytest.mark.parametrize("name", CASES)
def test_by_name_or_content(name: str, tmp_path: Path) -> None:
    other, size = a_model(name), CASES[name]["img_size"]
    file = written(other, tmp_path / "model.safetensors")
    agree(vitlab.load(file, image_size=size, name=name), other, some_images(size))
    if told := TELLING.get(name):
        model = vitlab.load(file, image_size=size)
        agree(model, other, some_images(size))
        assert {key: getattr(model.config, key) for key in told} == told


def test_perception_encoder_by_content(tmp_path: Path) -> None:
    """Its positions are those of the grid that its rotary ones are for, which is told."""
    grid = {"ref_feat_shape": (3, 3)}
    for name in ("vit_pe_core_tiny_patch16_384", "vit_pe_spatial_tiny_patch16_512"):
        other = a_model(name, **grid)
        file = written(other, tmp_path / "model.safetensors")
        agree(vitlab.load(file), other, some_images(48))
        found = load_check(file)
        assert (found.origins["rope_grid"], found.origins["rope_kind"]) == ("assumed", "family")
        assert "rope_grid 3" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("vit_small_patch16_rope_224", "no positions are stored"),
        ("vit_medium_patch16_rope_reg1_gap_256", "no positions are stored"),
        ("vit_base_patch16_rpn_224", "may be another model, as in vit_base_patch16_rpn_224"),
    ],
)
def test_what_leaves_no_trace_is_refused(name: str, part: str, tmp_path: Path) -> None:
    file = written(a_model(name), tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=part):
        vitlab.load(file)
    with pytest.raises(WeightsError, match=f"({part}|which channels rotary positions turn)"):
        vitlab.load(file, positions="rope", rope_kind="grid", image_size=48)


def folder_of(other: Any, folder: Path, **arguments: Any) -> Path:
    """As timm pushes it, with the arguments of its constructor."""
    peers.timm().models.save_for_hf(other, folder, model_args=arguments, safe_serialization=True)
    return folder


ARGUED: dict[str, tuple[str, dict[str, Any]]] = {
    "halves instead of neighbors": (
        "vit_small_patch16_rope_224",
        {"rope_rotate_half": True, "rope_grid_indexing": "ij", "rope_grid_offset": 2.0},
    ),
    "rows first": ("vit_small_patch16_rope_mixed_224", {"rope_grid_indexing": "ij"}),
    "rows first, axial": (
        "vit_small_patch16_rope_ape_224",
        {"rope_grid_indexing": "ij", "rope_temperature": 30.0, "ref_feat_shape": [5, 5]},
    ),
    "another kind": ("vit_small_patch16_rope_224", {"rope_type": "dinov3"}),
    "no rotary positions": ("eva02_tiny_patch14_224", {"use_rot_pos_emb": False}),
    "norms after": ("eva02_small_patch14_336", {"use_post_norm": True}),
    "RMS norms": ("vit_small_patch16_224", {"norm_layer": "rmsnorm"}),
    "mean of all tokens": (
        "vit_small_patch16_224", {"global_pool": "avg", "pool_include_prefix": True},
    ),
    "a pool with other heads": (
        "vit_pe_core_tiny_patch16_384", {"attn_pool_num_heads": 4, "attn_pool_mlp_ratio": 2.0},
    ),
    "inner norms": ("vit_small_patch16_224", {"scale_attn_norm": True, "scale_mlp_norm": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUED)
def test_arguments_of_the_constructor(case: str, tmp_path: Path) -> None:
    name, arguments = ARGUED[case]
    size = 42 if "patch14" in name else 48
    whole = {"img_size": size, "depth": 2, "num_classes": 3, **arguments}
    other = randomized(peers.timm().create_model(name, **whole))
    agree(vitlab.load(folder_of(other, tmp_path, **whole)), other, some_images(size))


@pytest.mark.parametrize(
    "arguments",
    [
        {"rope_type": "mrope", "use_rot_pos_emb": True},
        {"ref_feat_shape": [2, 3], "use_rot_pos_emb": True},
        {"rope_rotate_half": True},
        {"rope_type": "dinov3", "rope_grid_offset": 1.0},
        {"norm_layer": "simplenorm"},
        {"use_post_norm": True},
        {"scale_mlp": True},
    ],
)
def test_arguments_that_the_tensors_contradict(arguments: dict[str, Any], tmp_path: Path) -> None:
    name = "vit_small_patch16_rope_224"
    other = randomized(peers.timm().create_model(name, depth=1, img_size=32, num_classes=3))
    folder = folder_of(other, tmp_path, depth=1, img_size=32)
    if arguments == {"use_post_norm": True}:
        arguments = {"use_post_norm": True, "scale_attn_inner": True}
    content = json.loads((folder / "config.json").read_text())
    content["model_args"] |= arguments
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(WeightsError, match="unsupported model_args"):
        vitlab.load(folder)


RESIZED = {
    "eva02_tiny_patch14_224": (28, 70),
    "vit_pe_core_tiny_patch16_384": (64, 32),
    "vit_small_patch16_rope_ape_224": (64, 32),
    "vit_small_patch16_rope_mixed_224": (32, 80),
    "aimv2_large_patch14_224": (42, 28),
    "beit_base_patch16_224": (64, 48),
}


@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple")  # timm's
@pytest.mark.parametrize("name", RESIZED)
def test_other_image_sizes_are_timms(name: str, tmp_path: Path) -> None:
    other, size = a_model(name), RESIZED[name]
    file = written(other, tmp_path / "model.safetensors")
    model = vitlab.load(file, name=name, image_size=CASES[name]["img_size"])
    wide = a_model(name, img_size=size)
    family = sys.modules[type(other).__module__]
    wide.load_state_dict(family.checkpoint_filter_fn(other.state_dict(), wide))
    images = some_images(size)
    with torch.inference_mode():
        close(model(images), wide(images))
        close(model.resize(size)(images), wide(images))
        close(vitlab.load(file, name=name, image_size=size)(images), wide(images))
