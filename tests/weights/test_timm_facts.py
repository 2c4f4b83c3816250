"""What timm's files say beside their tensors: every word counts, or is refused, or is assumed."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitlab
from made_models import close
from oracles import peers
from vitlab.errors import WeightsError
from vitlab.weights.load import load_check
from weights.test_timm_files import randomized, written

HALF, IMAGENET = (0.5, 0.5, 0.5), (0.485, 0.456, 0.406)


def tiny(name: str = "vit_tiny_patch16_224", **choices: Any) -> nn.Module:
    chosen = {"depth": 1, "img_size": 32, "num_classes": 3} | choices
    return randomized(peers.timm().create_model(name, **chosen))


def folder(model: nn.Module, place: Path, **content: Any) -> Path:
    """A repository of timm with anything in its config.json."""
    place.mkdir(exist_ok=True)
    written(model, place / "model.safetensors")
    shape = [3, 32, 32]
    usual = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"input_size": shape}}
    (place / "config.json").write_text(json.dumps(usual | content))
    return place


def test_training_checkpoints_of_timm(tmp_path: Path) -> None:
    """`arch` names the model; `args` say what differed from it."""
    model = tiny(global_pool="avg")
    args = argparse.Namespace(
        model="vit_tiny_patch16_224", mean=[0.1, 0.2, 0.3], std=None, crop_pct=None,
        interpolation="bilinear", gp="avg", img_size=32, model_kwargs={"act_layer": "gelu"},
    )  # fmt: skip
    content = {"arch": "vit_tiny_patch16_224", "epoch": 3, "args": args}
    torch.save(content | {"state_dict": model.state_dict()}, tmp_path / "last.pth.tar")
    config = vitlab.load(tmp_path / "last.pth.tar").config
    assert (config.mean, config.std) == ((0.1, 0.2, 0.3), HALF)
    assert (config.interpolation, config.pool) == ("bilinear", "mean")
    # DeiT's and MAE's code trains timm's models on ImageNet's normalization
    torch.save({"model": model.state_dict(), "args": args}, tmp_path / "deit.pth")
    assert vitlab.load(tmp_path / "deit.pth").config.mean == IMAGENET
    args.model_kwargs = {"act_layer": "relu"}
    torch.save(content | {"state_dict": model.state_dict()}, tmp_path / "last.pth.tar")
    with pytest.raises(WeightsError, match="unsupported model_args act_layer='relu'"):
        vitlab.load(tmp_path / "last.pth.tar")


def test_an_option_settles_an_argument(tmp_path: Path) -> None:
    place = folder(tiny(), tmp_path / "m", model_args={"act_layer": "relu"})
    assert vitlab.load(place, gelu="quick").config.gelu == "quick"
    place = folder(tiny(), tmp_path / "n", pretrained_cfg={"interpolation": "lanczos"})
    with pytest.raises(WeightsError, match="interpolation='lanczos' of timm: give --interpolation"):
        vitlab.load(place)
    assert vitlab.load(place, interpolation="bicubic").config.interpolation == "bicubic"


def test_labels_and_defaults_of_config_json(tmp_path: Path) -> None:
    """Labels may be a table by number; what is not stated is timm's default, not a guess."""
    labels = {"0": "cat", "1": "dog", "2": "owl"}
    place = folder(tiny(), tmp_path / "m", label_names=labels, label_descriptions={"cat": "Cat"})
    config = vitlab.load(place).config
    assert (config.labels, config.mean, config.crop) == (("cat", "dog", "owl"), IMAGENET, 0.875)
    assert not load_check(place).notes
    for stated in ({"crop_mode": "border"}, {"label_offset": 1}, {"unheard_of": 2},
                   {"num_classes": 7}):  # fmt: skip
        with pytest.raises(WeightsError, match=next(iter(stated))):
            vitlab.load(folder(tiny(), tmp_path / "m", pretrained_cfg=stated))


UNNAMED: dict[str, tuple[dict[str, Any], str]] = {
    "vit_relpos_small_patch16_224": ({}, "positions from an MLP"),
    "vit_dwee_patch16_reg1_gap_256": ({}, "differential attention"),
    "vit_huge_patch16_radio_v3": ({"embed_dim": 160}, "as in C-RADIO"),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_families_beyond_the_model_by_content(name: str, tmp_path: Path) -> None:
    """Without a name, so that only the tensors can tell."""
    choices, message = UNNAMED[name]
    file = written(tiny(name, **choices), tmp_path / "model_weights.safetensors")
    with pytest.raises(WeightsError, match=message):
        vitlab.load(file)


HEADS: dict[str, tuple[dict[str, Any], int, str]] = {
    "vit_huge_plus_patch16_dinov3": ({}, 20, "family"),
    "vit_giantopt_patch16_siglip_256": ({"num_classes": 0}, 16, "assumed"),
    "vit_giant_patch14_dinov2": ({"img_size": 28}, 24, "family"),
    "vit_base_patch32_clip_quickgelu_224": ({"img_size": 64}, 12, "assumed"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_by_content(name: str, tmp_path: Path) -> None:
    choices, heads, origin = HEADS[name]
    with torch.device("meta"):
        model = peers.timm().create_model(name, **{"depth": 1, "img_size": 32} | choices)
    state = {key: torch.zeros(1).expand(t.shape) for key, t in model.state_dict().items()}
    torch.save(state, tmp_path / "m.pth")  # which take no space
    found = load_check(tmp_path / "m.pth", image_size=choices.get("img_size", 32))
    assert (found.config["heads"], found.origins["heads"]) == (heads, origin)
    assert found.notes if origin == "assumed" else True


def open_clip(place: Path, prefix: str, model: nn.Module, **vision: Any) -> Path:
    """A repository of open_clip with one of timm's models."""
    place.mkdir()
    state = {f"{prefix}{name}": t.contiguous() for name, t in model.state_dict().items()}
    save_file(state, place / "open_clip_model.safetensors")
    prepared = {"mean": HALF, "std": HALF, "interpolation": "bicubic", "resize_mode": "squash"}
    content = {"model_cfg": {"embed_dim": 9, "vision_cfg": vision}, "preprocess_cfg": prepared}
    (place / "open_clip_config.json").write_text(json.dumps(content))
    return place


def test_open_clips_repositories(tmp_path: Path) -> None:
    name = "vit_base_patch32_siglip_256"
    model = tiny(name, img_size=64, num_classes=0)
    vision = {"image_size": 64, "timm_model_name": name, "timm_pool": "map", "timm_proj": "none"}
    place = open_clip(tmp_path / "a", "visual.trunk.", model, **vision)
    loaded, images = vitlab.load(place), torch.randn(2, 3, 64, 64)
    assert (loaded.config.gelu, loaded.config.fit, loaded.config.mean) == ("tanh", "squash", HALF)
    assert not load_check(place).notes
    with torch.inference_mode():
        close(loaded(images), model(images))
    place = open_clip(tmp_path / "b", "visual.trunk.", model, **vision, input_patchnorm=True)
    with pytest.raises(WeightsError, match="unsupported vision_cfg input_patchnorm=True"):
        vitlab.load(place)


def test_blocks_without_an_mlp_are_named(tmp_path: Path) -> None:
    """Whether an MLP is gated is asked of files that have none, too."""
    state = tiny("eva02_base_patch16_clip_224", embed_dim=96, num_heads=3).state_dict()
    bare = {name: tensor for name, tensor in state.items() if ".mlp." not in name}
    bare["blocks.0.attn.q_bias"] = torch.zeros(96)
    torch.save(bare, tmp_path / "bare.pth")
    with pytest.raises(WeightsError, match="unsupported encoder blocks"):
        vitlab.load(tmp_path / "bare.pth")
