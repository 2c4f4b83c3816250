"""Files with timm's names, random weights: the same numbers as in timm, or a reason."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vitlab
from oracles import peers
from vitlab.errors import WeightsError
from vitlab.weights.load import load_check

SMALL = {"depth": 2, "num_classes": 7}
PLAIN: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 48},
    "vit_small_patch16_18x2_224": {"img_size": 32},
    "vit_base_patch16_gap_224": {"depth": 1, "img_size": 32},
    "vit_base_patch16_224_miil": {"depth": 1, "img_size": 32},
    "vit_wee_patch16_reg1_gap_256": {"img_size": 64},
    "vit_so150m_patch16_reg4_gap_256": {"depth": 1, "img_size": 64},
    "vit_so150m_patch16_reg4_map_256": {"depth": 1, "img_size": 64},
    "vit_base_patch16_clip_224": {"depth": 1, "img_size": 32},
    "vit_base_patch32_clip_quickgelu_224": {"depth": 1, "img_size": 64},
    "vit_base_patch16_siglip_224": {"depth": 1, "img_size": 32, "num_classes": 0},
    "vit_so400m_patch16_siglip_gap_256": {"depth": 1, "img_size": 32, "num_classes": 0},
    "vit_base_patch32_siglip_256": {"depth": 1, "img_size": 64},
    "vit_small_patch14_dinov2": {"img_size": 56, "num_classes": 0},
    "vit_small_patch14_reg4_dinov2": {"img_size": 56},
    "vit_giant_patch14_dinov2": {"depth": 1, "img_size": 28, "embed_dim": 192, "num_heads": 3},
    "vit_small_patch16_dinov3": {"img_size": 48, "num_classes": 0},
    "vit_small_patch16_dinov3_qkvb": {"img_size": 48},
    "vit_small_plus_patch16_dinov3": {"img_size": 48},
    "vit_intern300m_patch14_448": {"depth": 1, "img_size": 28, "num_classes": 0},
    "vit_small_r26_s32_224": {"img_size": 64},
    "vit_tiny_r_s16_p8_224": {"img_size": 64},
    "deit_tiny_patch16_224": {"img_size": 48},
    "deit_tiny_distilled_patch16_224": {"img_size": 48},
    "deit3_small_patch16_224": {"img_size": 48},
    "beit_base_patch16_384": {"depth": 1, "img_size": 48},
    "beitv2_base_patch16_224": {"depth": 1, "img_size": 48},
    "eva_giant_patch14_224": {"depth": 1, "img_size": 28},
    "eva_large_patch14_196": {"depth": 1, "img_size": 28},
}
# Other norms, positions and pools.
BEYOND: dict[str, dict[str, Any]] = {
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
    "cait_xxs24_224": {
        "img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 3, "num_classes": 5,
    },
}  # fmt: skip
CASES = {name: SMALL | choices for name, choices in PLAIN.items()} | {
    name: {"depth": 2} | choices for name, choices in BEYOND.items()
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
    "cait_xxs24_224": {"heads": 3, "class_blocks": 2, "talking_heads": True},
}


def randomized(model: nn.Module, seed: int = 4) -> nn.Module:
    """Every tensor random, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and "running" not in name and "periods" not in name:
                tensor.add_(0.02 * torch.randn(tensor.shape, generator=generator))
    return model.eval()


def written(model: nn.Module, file: Path) -> Path:
    """As timm's repositories hold it."""
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if file.suffix == ".safetensors":
        save_file(tensors, file)
    else:
        torch.save(tensors, file)
    return file


def close(got: Tensor, want: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


def a_model(name: str, **more: Any) -> Any:
    return randomized(peers.timm().create_model(name, **CASES[name] | more))


def some_images(size: int | tuple[int, int], count: int = 2) -> Tensor:
    rows, columns = (size, size) if isinstance(size, int) else size
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, 3, rows, columns, generator=generator)


def agree(model: Any, other: Any, images: Tensor) -> None:
    with torch.inference_mode():
        tokens = other.forward_features(images)
        close(model.encode(images), tokens)
        close(model(images), other(images))
        if not hasattr(other, "head_dist"):
            close(model.features(images), other.forward_head(tokens, pre_logits=True))
        close(vitlab.fuse(model)(images), other(images))


RELATED = (  # of the same tensors and words as others, for the campaign
    "eva_large_patch14_196", "vit_so400m_patch16_siglip_gap_256", "vit_so150m_patch16_reg4_map_256",
    "vit_base_patch32_siglip_256", "vit_small_patch14_dinov2", "vit_pe_core_gigantic_patch14_448",
    "eva02_base_patch14_448", "test_vit3", "vit_small_patch16_dinov3_qkvb", "beit_base_patch16_384",
)  # fmt: skip
NAMES = [
    pytest.param(name, marks=[pytest.mark.campaign] if name in RELATED else []) for name in CASES
]


@pytest.mark.parametrize("name", NAMES)
def test_by_name_or_content(name: str, tmp_path: Path) -> None:
    other, size = a_model(name), CASES[name]["img_size"]
    file = written(other, tmp_path / ("any.pth" if "deit" in name else "any.safetensors"))
    heads = {"heads": CASES[name]["num_heads"]} if "num_heads" in CASES[name] else {}
    asked = size if name in BEYOND or "dinov3" in name else None  # no positions to tell by
    called = {} if name.startswith("cait") else {"name": f"{name}.random"}  # content says it all
    model = vitlab.load(file, None, asked, **called, **heads)
    assert model.config.size == (size, size)
    agree(model, other, some_images(size, 3))
    if told := TELLING.get(name):
        model = vitlab.load(file, image_size=size)
        agree(model, other, some_images(size))
        assert {key: getattr(model.config, key) for key in told} == told


def test_a_full_size(tmp_path: Path) -> None:
    """Twelve blocks: rounding grows, so in double precision."""
    name = "vit_tiny_patch16_224"
    other = randomized(peers.timm().create_model(name, img_size=48))
    model = vitlab.load(written(other, tmp_path / "any.safetensors"), name=name).double()
    images = torch.randn(1, 3, *model.config.size, dtype=torch.float64)
    with torch.inference_mode():
        close(model(images), other.double()(images), 1e-8)


RESIZED = {
    "vit_tiny_patch16_224": (48, 80),
    "deit3_small_patch16_224": (64, 32),
    "vit_small_patch14_reg4_dinov2": (84, 56),
    "vit_small_patch16_dinov3": (64, 32),
    "eva02_tiny_patch14_224": (28, 70),
    "vit_pe_core_tiny_patch16_384": (64, 32),
    "vit_small_patch16_rope_ape_224": (64, 32),
    "vit_small_patch16_rope_mixed_224": (32, 80),
    "aimv2_large_patch14_224": (42, 28),
    "beit_base_patch16_224": (64, 48),
}


@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple")  # timm's
@pytest.mark.parametrize("name", RESIZED)
def test_positions_are_resized_as_timm_does(name: str, tmp_path: Path) -> None:
    other, size = a_model(name), RESIZED[name]
    file = written(other, tmp_path / "any.safetensors")
    wide = a_model(name, img_size=size)
    family = sys.modules[type(other).__module__]
    wide.load_state_dict(family.checkpoint_filter_fn(other.state_dict(), wide))
    images, model = some_images(size), vitlab.load(file, name=name, image_size=size)
    with torch.inference_mode():
        close(model(images), wide(images))
        if name in BEYOND:
            model = vitlab.load(file, name=name, image_size=CASES[name]["img_size"])
            close(model(images), wide(images))
            close(model.resize(size)(images), wide(images))


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
    "class blocks": (
        "cait_xxs24_224",
        {
            "embed_dim": 24, "num_heads": 3, "mlp_ratio": 2, "mlp_ratio_token_only": 2,
            "global_pool": "avg",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUED)
def test_arguments_of_the_constructor(case: str, tmp_path: Path) -> None:
    name, arguments = ARGUED[case]
    size = 42 if "patch14" in name else 48
    whole = {"img_size": size, "depth": 2, "num_classes": 3, **arguments}
    other = randomized(peers.timm().create_model(name, **whole))
    agree(vitlab.load(folder_of(other, tmp_path, **whole)), other, some_images(size))


CONTRADICTED: dict[str, list[dict[str, Any]]] = {
    "vit_small_patch16_rope_224": [
        {"rope_type": "mrope", "use_rot_pos_emb": True},
        {"ref_feat_shape": [2, 3], "use_rot_pos_emb": True},
        {"rope_rotate_half": True},
        {"rope_type": "dinov3", "rope_grid_offset": 1.0},
        {"norm_layer": "simplenorm"},
        {"use_post_norm": True, "scale_attn_inner": True},
        {"scale_mlp": True},
    ],
    "cait_xxs24_224": [
        {"num_heads": 3}, {"depth_token_only": 3}, {"mlp_ratio_token_only": 2.0},
        {"act_layer": "relu"}, {"attn_block": "x"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTED)
def test_arguments_that_the_tensors_contradict(name: str, tmp_path: Path) -> None:
    other = randomized(peers.timm().create_model(name, depth=1, img_size=32, num_classes=3))
    file = folder_of(other, tmp_path, depth=1, img_size=32) / "config.json"
    content = json.loads(file.read_text())
    for arguments in CONTRADICTED[name]:
        file.write_text(json.dumps(content | {"model_args": content["model_args"] | arguments}))
        with pytest.raises(WeightsError, match="unsupported model_args"):
            vitlab.load(tmp_path)


def test_what_is_missing_of_cait_is_named(tmp_path: Path) -> None:
    state = a_model("cait_xxs24_224").state_dict()
    without = {name: tensor for name, tensor in state.items() if "proj_" not in name}
    save_file(without, tmp_path / "plain.safetensors")
    with pytest.raises(WeightsError, match="how many heads a width of 24 has: give --heads"):
        vitlab.load(tmp_path / "plain.safetensors")
    assert not vitlab.load(tmp_path / "plain.safetensors", heads=3).config.talking_heads
    del state["blocks_token_only.1.attn.k.weight"]
    save_file(state, tmp_path / "damaged.safetensors")
    with pytest.raises(WeightsError, match=r"blocks_token_only\.1\.attn\.k\.weight is missing"):
        vitlab.load(tmp_path / "damaged.safetensors")


@pytest.mark.parametrize("name", ["", "vit_tiny_patch16_224"])
def test_a_rectangle_with_as_many_patches_as_a_square_is_what_the_user_says(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = randomized(
        peers.timm().create_model("vit_tiny_patch16_224", **SMALL, img_size=(16, 64))
    )
    file = written(other, tmp_path / "wide.pth")
    images = torch.randn(2, 3, 16, 64, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        model = vitlab.load(file, name=name, image_size=(16, 64), heads=3)
        close(model(images), other(images))
    assert "image_size" not in caplog.text
    vitlab.load(file, heads=3)
    assert "assumed: image_size 32" in caplog.text  # a guess from their number


def test_what_the_name_says(tmp_path: Path) -> None:
    other = peers.timm().create_model("vit_base_patch16_clip_quickgelu_224", **SMALL)
    model = vitlab.load(
        written(other, tmp_path / "w.pth"), name="vit_base_patch16_clip_quickgelu_224"
    )
    config = model.config
    assert (config.gelu, config.norm_eps, config.pre_norm) == ("quick", 1e-5, True)
    assert config.mean == (0.48145466, 0.4578275, 0.40821073)
    assert config.interpolation == "bicubic"


def test_a_repositorys_config_says_it_all(tmp_path: Path) -> None:
    """config.json as timm pushes it: odd heads, another size, normalization, labels."""
    timm = peers.timm()
    arguments = {"embed_dim": 48, "num_heads": 2, "depth": 2, "img_size": [32, 48]}
    told = {
        "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_pct": 0.8, "crop_mode": "squash",
        "interpolation": "bilinear", "input_size": [3, 32, 48],
    }  # fmt: skip
    other = timm.create_model(
        "vit_tiny_patch16_224", num_classes=3, pretrained_cfg_overlay=told, **arguments
    )
    randomized(other)
    labels = {"label_names": ["cat", "dog", "owl"]}
    timm.models.save_for_hf(
        other, tmp_path, model_config=labels, model_args=arguments, safe_serialization=True
    )
    model = vitlab.load(tmp_path)
    config = model.config
    assert (config.heads, config.size, config.crop, config.fit) == (2, (32, 48), 0.8, "squash")
    assert (config.mean, config.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (config.labels, config.interpolation) == (("cat", "dog", "owl"), "bilinear")
    images = torch.randn(2, 3, 32, 48)
    with torch.inference_mode():
        close(model(images), other(images))


def test_a_stranger_s_config_is_not_its_own(tmp_path: Path) -> None:
    """A file of another name beside some config.json stands for itself."""
    other = randomized(peers.timm().create_model("vit_tiny_patch16_224", depth=1, num_classes=3))
    file = written(other, tmp_path / "vit_tiny_patch16_224.pth")
    (tmp_path / "config.json").write_text('{"model_type": "swin"}')
    assert vitlab.load(file).config.classes == 3


def test_questions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What neither file nor name says is asked for, or told of."""
    timm = peers.timm()
    odd = timm.create_model("vit_tiny_patch16_224", embed_dim=48, num_heads=2, depth=1)
    file = written(odd, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"how many heads a width of 48 has: give --heads"):
        vitlab.load(file)
    assert vitlab.load(file, heads=2).config.heads == 2
    for assumed in ("gelu exact", "norm_eps 1e-06", "mean 0.485", "crop 0.875", "--mean"):
        assert assumed in caplog.text
    wide = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=(32, 48))
    file = written(wide, tmp_path / "wide.safetensors")
    with pytest.raises(
        ValueError, match=r"7 positions do not form a square of patches: give their size"
    ):
        vitlab.load(file)
    assert vitlab.load(file, image_size=(32, 48)).config.size == (32, 48)
    with pytest.raises(
        ValueError, match="unsupported model vit_relpos_small_patch16_224: it has positions from"
    ):
        vitlab.load(file, name="vit_relpos_small_patch16_224")


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    other = randomized(peers.timm().create_model("vit_tiny_patch16_224", depth=1)).bfloat16()
    model = vitlab.load(written(other, tmp_path / "vit_tiny_patch16_224.pth"))
    assert model.norm.weight.dtype == torch.float32
    assert torch.equal(model.norm.weight, other.norm.weight.float())
