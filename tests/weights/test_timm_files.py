"""Files with timm's names, random weights: the same numbers as in timm."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vitlab
from oracles import peers

SMALL = {"depth": 2, "num_classes": 7}
CASES: dict[str, dict[str, Any]] = {
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
    "beit_base_patch16_224": {"depth": 1, "img_size": 48},
    "beitv2_base_patch16_224": {"depth": 1, "img_size": 48},
    "eva_giant_patch14_224": {"depth": 1, "img_size": 28},
    "eva_large_patch14_196": {"depth": 1, "img_size": 28},
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


@pytest.mark.parametrize("name", CASES)
def test_logits_features_and_tokens_are_timms(name: str, tmp_path: Path) -> None:
    choices = SMALL | CASES[name]
    other = randomized(peers.timm().create_model(name, **choices))
    end = ".pth" if "deit" in name else ".safetensors"
    heads = {"heads": choices["num_heads"]} if "num_heads" in choices else {}
    size = choices["img_size"]
    asked = size if "dinov3" in name else None  # no positions in the file to tell by
    file = written(other, tmp_path / f"any{end}")
    model = vitlab.load(file, None, asked, name=f"{name}.random", **heads)
    assert model.config.size == (size, size)
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        tokens = other.forward_features(images)
        close(model(images), other(images))
        close(model.encode(images), tokens)
        if "distilled" not in name:
            close(model.features(images), other.forward_head(tokens, pre_logits=True))
        close(vitlab.fuse(model)(images), other(images))


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
    "beit_base_patch16_224": (64, 96),
    "vit_small_patch16_dinov3": (64, 32),
}


@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple")  # timm's
@pytest.mark.parametrize("name", RESIZED)
def test_positions_are_resized_as_timm_does(name: str, tmp_path: Path) -> None:
    timm, size = peers.timm(), RESIZED[name]
    other = randomized(timm.create_model(name, **SMALL | CASES[name]))
    file = written(other, tmp_path / "any.safetensors")
    model = vitlab.load(file, image_size=size, name=name)
    wide = timm.create_model(name, **SMALL | CASES[name] | {"img_size": size})
    family = sys.modules[type(other).__module__]
    wide.eval().load_state_dict(family.checkpoint_filter_fn(other.state_dict(), wide))
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        close(model(images), wide(images))


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
