"""The papers' own `.pth` files: timm's models under the names that the official code gives them."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from made_models import close
from oracles import peers
from weights.test_timm_files import randomized

State = dict[str, Tensor]
IMAGENET = (0.485, 0.456, 0.406)


def made(name: str, **choices: Any) -> nn.Module:
    usual = {"depth": 2, "num_classes": 7, "img_size": 48}
    return randomized(peers.timm().create_model(name, **usual | choices))


def renamed(state: State, *rules: tuple[str, str]) -> State:
    result = {}
    for name, tensor in state.items():
        for pattern, word in rules:
            name = re.sub(pattern, word, name)
        result[name] = tensor.clone()
    return result


def deit(state: State) -> Any:
    return {"model": state}


def deit3(state: State) -> Any:
    return {"model": renamed(state, (r"\.ls(\d)\.gamma", r".gamma_\1"))}


def parallel(state: State) -> Any:
    """Block_paralx2 of DeiT's models_v2.py; its class token has no position."""
    rules = [
        (r"\.attns\.0\.norm\.", ".norm1."), (r"\.attns\.1\.norm\.", ".norm11."),
        (r"\.ffns\.0\.norm\.", ".norm2."), (r"\.ffns\.1\.norm\.", ".norm21."),
        (r"\.attns\.0\.attn\.", ".attn."), (r"\.attns\.1\.attn\.", ".attn1."),
        (r"\.ffns\.0\.mlp\.", ".mlp."), (r"\.ffns\.1\.mlp\.", ".mlp1."),
        (r"\.attns\.0\.ls\.gamma", ".gamma_1"), (r"\.attns\.1\.ls\.gamma", ".gamma_1_1"),
        (r"\.ffns\.0\.ls\.gamma", ".gamma_2"), (r"\.ffns\.1\.ls\.gamma", ".gamma_2_1"),
    ]  # fmt: skip
    return {"model": renamed(state, *rules), "args": argparse.Namespace(lr=1e-3)}


def mae(state: State) -> Any:
    more = {"mask_token": torch.zeros(1, 1, 8), "decoder_pos_embed": torch.zeros(1, 10, 8)}
    more |= {"decoder_blocks.0.norm1.weight": torch.ones(8), "decoder_pred.bias": torch.ones(8)}
    return {"model": renamed(state) | more}


def dino(state: State) -> Any:
    """A whole training checkpoint: student and teacher, each with the head of pre-training."""
    inside = {f"backbone.{name}": tensor for name, tensor in state.items()}
    head = {"head.mlp.0.weight": torch.ones(2, 2), "head.last_layer.weight_v": torch.ones(2, 2)}
    student = {f"module.{name}": torch.zeros_like(tensor) for name, tensor in inside.items()}
    return {"student": student, "teacher": inside | head, "epoch": 3}


def dino2(state: State) -> Any:
    """With chunks of blocks, as in training."""
    rules = ((r"^blocks\.(\d+)\.", r"blocks.0.\1."), ("^reg_token", "register_tokens"))
    return renamed(state, *rules) | {"mask_token": torch.zeros(1, 384)}


def dino2_gated(state: State) -> Any:
    rules = ((r"\.mlp\.fc1\.", ".mlp.w12."), (r"\.mlp\.fc2\.", ".mlp.w3."))
    return renamed(state, *rules) | {"mask_token": torch.zeros(1, 192)}


def dino3(state: State) -> Any:
    """Biases of queries, keys and values in one, with a mask for the keys."""
    rules = ((r"\.gamma_(\d)", r".ls\1.gamma"), ("^reg_token", "storage_tokens"))
    state = renamed(state, *rules)
    for name in [name for name in state if name.endswith("attn.q_bias")]:
        front = name.removesuffix("q_bias")
        q, v = state.pop(name), state.pop(f"{front}v_bias")
        state[f"{front}qkv.bias"] = torch.cat([q, torch.ones_like(q), v])
        mask = torch.cat([torch.ones_like(q), torch.zeros_like(q), torch.ones_like(q)])
        state[f"{front}qkv.bias_mask"] = mask
    periods = 100 ** (torch.arange(16) / 16)
    return state | {"rope_embed.periods": periods, "mask_token": torch.zeros(1, 384)}


def beit(state: State) -> Any:
    index = {"blocks.0.attn.relative_position_index": torch.zeros(10, 10, dtype=torch.int64)}
    return {"model": renamed(state) | index}


def dino3_released(state: State) -> Any:
    """Meta's files hold the periods as bfloat16 rounds them."""
    content = dino3(state)
    return content | {"rope_embed.periods": content["rope_embed.periods"].bfloat16().float()}


NONE = {"num_classes": 0}
GATED = {"embed_dim": 192, "num_heads": 3, "img_size": 28, **NONE}
CASES: dict[str, tuple[str, dict[str, Any], Callable[[State], Any], dict[str, Any]]] = {
    "DeiT": ("deit_tiny_patch16_224", {}, deit, {}),
    "DeiT, distilled": ("deit_tiny_distilled_patch16_224", {}, deit, {}),
    "DeiT-III": ("deit3_small_patch16_224", {}, deit3, {}),
    "Three things": ("vit_small_patch16_18x2_224", {"no_embed_class": True}, parallel, {}),
    "MAE": ("vit_base_patch16_224", NONE, mae, {}),
    "MAE, fine-tuned": ("vit_base_patch16_224", {"global_pool": "avg"}, deit, {}),
    "DINO": ("vit_small_patch16_224", NONE, dino, {}),
    "DINOv2": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, **NONE}, dino2, {}),
    "DINOv2, SwiGLU": ("vit_giant_patch14_dinov2", GATED, dino2_gated, {}),
    "DINOv3": ("vit_small_patch16_dinov3_qkvb", {"global_pool": "token", **NONE}, dino3, {}),
    "BEiT": ("beit_base_patch16_224", {}, beit, {"mean": (0.5, 0.5, 0.5)}),
}


@pytest.mark.parametrize("case", CASES)
def test_official_files(case: str, tmp_path: Path) -> None:
    name, choices, wrap, said = CASES[case]
    other = made(name, **choices)
    torch.save(wrap(dict(other.state_dict())), tmp_path / "checkpoint.pth")
    size = other.patch_embed.img_size  # type: ignore[union-attr]
    asked = size[0] if case == "DINOv3" else None
    model = vitlab.load(tmp_path / "checkpoint.pth", image_size=asked)
    assert model.config.mean == said.get("mean", IMAGENET)
    images = torch.randn(2, 3, *size)
    with torch.inference_mode():
        close(model(images), other(images))


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_deits_hmlp_stem(norm: str, tmp_path: Path) -> None:
    """The stem is the same sequence of layers in DeiT's code; what is new is its name."""
    own = vitlab.create("ViT-Ti1/16", 5, 32, stem="hmlp", stem_norm=norm).eval()
    with torch.no_grad():
        own.positions[0].table[:, 0] = 0
    state = own.state_dict()
    theirs = {"pos_embed": state["positions.0.table"][:, 1:], "cls_token": state["token"]}
    for ours, name in [
        ("stem.layers.", "patch_embed.proj."), ("head.classify.", "head."), ("norm.", "norm."),
        ("blocks.0.attention.0.norm.", "blocks.0.norm1."),
        ("blocks.0.mlp.0.norm.", "blocks.0.norm2."),
        ("blocks.0.attention.0.body.qkv.", "blocks.0.attn.qkv."),
        ("blocks.0.attention.0.body.project.", "blocks.0.attn.proj."),
        ("blocks.0.mlp.0.body.expand.", "blocks.0.mlp.fc1."),
        ("blocks.0.mlp.0.body.contract.", "blocks.0.mlp.fc2."),
    ]:  # fmt: skip
        theirs |= {name + k.removeprefix(ours): v for k, v in state.items() if k.startswith(ours)}
    torch.save({"model": theirs}, tmp_path / "hmlp.pth")
    model = vitlab.load(tmp_path / "hmlp.pth")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images), own(images))


def test_dino3_turns_by_the_periods_that_are_stored(tmp_path: Path) -> None:
    """What timm computes, but rounded as in Meta's files."""
    other = made("vit_small_patch16_dinov3_qkvb", global_pool="token", **NONE)
    torch.save(dino3_released(dict(other.state_dict())), tmp_path / "dinov3.pth")
    model, images = vitlab.load(tmp_path / "dinov3.pth", image_size=48), torch.randn(2, 3, 48, 48)
    assert model.config.rope_rounded
    with torch.inference_mode():
        assert (model(images) - other(images)).abs().max() > 1e-5
        periods = other.rope.periods  # type: ignore[union-attr]
        periods.copy_(periods.bfloat16().float())  # type: ignore[operator,union-attr]
        close(model(images), other(images))
    content = dino3(dict(other.state_dict())) | {"rope_embed.periods": torch.ones(16)}
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(vitlab.UserError, match="unsupported periods of rotary positions"):
        vitlab.load(tmp_path / "other.pth", image_size=48)
