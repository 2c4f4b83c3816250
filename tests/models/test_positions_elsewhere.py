"""Positions within attention against transformers' own."""

import copy
from typing import Any

import pytest
import torch

import vitlab

transformers = pytest.importorskip("transformers")


def test_a_bias_within_attention_acts_as_in_beit() -> None:
    """BEiT's own attention, given our relative logits where it takes its bias."""
    from transformers.models.beit import modeling_beit as beit

    config = transformers.BeitConfig(
        hidden_size=48, num_attention_heads=3, attn_implementation="eager"
    )
    theirs = beit.BeitAttention(config).eval()
    model = vitlab.create(
        "ViT(width=48,depth=1,heads=3,mlp=10)/16", 2, 64, positions="relative", norm_eps=1e-6
    )
    ours, relative = model.blocks[0].attention[0].body, model.positions[0]
    torch.nn.init.normal_(relative.table)
    torch.nn.init.normal_(ours.qkv.bias)
    parts = zip(("q_proj", "k_proj", "v_proj"), ours.qkv.weight.chunk(3), strict=True)
    state = {f"{name}.weight": weight for name, weight in parts}
    q_bias, k_bias, v_bias = ours.qkv.bias.chunk(3)
    torch.nn.init.zeros_(k_bias)  # BEiT's keys have none
    state |= {"q_proj.bias": q_bias, "v_proj.bias": v_bias}
    state |= {"o_proj.weight": ours.project.weight, "o_proj.bias": ours.project.bias}
    theirs.load_state_dict(state)
    tokens = torch.randn(2, 17, 48)
    with torch.inference_mode():
        q = ours.qkv(tokens)[..., :48].unflatten(-1, (3, 16)).transpose(1, 2)
        want, weights = theirs(tokens, attention_mask=relative.bias(q))
        close = {"rtol": 0, "atol": 1e-5}
        torch.testing.assert_close(ours(tokens, relative), want, **close)
        torch.testing.assert_close(ours.weights(tokens, relative), weights, **close)


def turning(depth: int = 8, **choices: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    name = f"ViT(width=64,depth={depth},heads=2,mlp=64)/4"
    model = vitlab.create(name, 3, 64, positions="rope", generator=generator, **choices).eval()
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.1, generator=generator)
    return model


@pytest.mark.parametrize("kind", ["image", "grid"])
def test_rotary_positions_turn_in_fp32_in_a_model_of_bf16(kind: str) -> None:
    model = turning(1, rope_kind=kind)
    half = copy.deepcopy(model).bfloat16()
    for part in (model, half):
        part.positions.load_state_dict(half.positions.state_dict())  # frequencies, as rounded
    heads = torch.randn(2, 2, model.config.length, 32).bfloat16()
    want = model.positions[0].turn(heads.float()).bfloat16()
    assert torch.equal(half.positions[0].turn(heads), want)
    assert half.positions[0].turn(heads).dtype is torch.bfloat16
