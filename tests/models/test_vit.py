"""The model by itself: shapes, counts, starts, refusals."""

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import vitlab
from vitlab.errors import OptionError
from vitlab.models.encoder.attention import attend, attention_weights


def test_pre_logits_add_their_layer() -> None:
    small = vitlab.create("ViT-Ti/16", 3, 32, pre_logits=24)
    images = torch.randn(2, 3, 32, 32)
    assert small.features(images).shape == (2, 24)
    assert small.features(images).abs().max() <= 1


def test_parallel_branches_add_up_and_show_their_heads() -> None:
    model = vitlab.create("ViT-Ti2x3/8", 5, 16).eval()
    images = torch.randn(2, 3, 16, 16)
    assert [m.shape for m in model.attention_maps(images)] == [(2, 9, 5, 5)] * 2
    tokens = torch.randn(2, 5, 192)
    block = model.blocks[0]
    after = tokens + sum(branch(tokens) for branch in block.attention)
    after = after + sum(branch(after) for branch in block.mlp)
    torch.testing.assert_close(block(tokens), after)


def test_attention_maps_are_what_the_forward_pass_uses() -> None:
    """Values taken by the maps and projected give the branch's own output."""
    model = vitlab.create("ViT-Ti/8", 5, 32, depth=1).eval()
    images = torch.randn(2, 3, 32, 32)
    seen = []
    branch = model.blocks[0].attention[0]
    branch.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    model(images)
    tokens, out = seen[0]
    values = branch.body.qkv(branch.norm(tokens)).chunk(3, -1)[2].unflatten(-1, (3, 64))
    mixed = torch.einsum("bhqk,bkhd->bqhd", model.attention_maps(images)[0], values)
    torch.testing.assert_close(branch.body.project(mixed.flatten(2)), out, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [17, 1100])
def test_both_forms_of_attention_agree(dtype: torch.dtype, tokens: int) -> None:
    q, k, v = torch.randn(3, 2, 3, tokens, 16).to(dtype)
    exact = F.softmax(q.double() @ k.double().mT / 4, -1) @ v.double()
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(attend(q, k, v).double(), exact, rtol=0, atol=tolerance)
    assert attention_weights(q, k).float().sum(-1).sub(1).abs().max() < 2e-2


def test_initial_weights_follow_the_official_code() -> None:
    model = vitlab.create("ViT-S/16", generator=torch.Generator().manual_seed(0))
    block, width = model.blocks[3], 384
    for weight in block.attention[0].body.qkv.weight.chunk(3):
        bound = (3 / width) ** 0.5  # xavier-uniform on D x D, each by itself
        assert 0.99 * bound < weight.abs().max() <= bound
    expand = block.mlp[0].body.expand
    assert expand.weight.abs().max() <= (6 / (5 * width)) ** 0.5
    assert 0 < expand.bias.std() < 2e-6
    assert model.positions[0].table.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.stem.layers[0].weight.std().item() == pytest.approx((1 / 768) ** 0.5, rel=0.02)
    assert not model.token.any()
    assert not model.stem.layers[0].bias.any()
    assert model.head.classify.weight.any()
    queries = vitlab.create("ViT-Ti/16", 3, 32, pool="attention", queries=4).head.attend.queries
    bound = (6 / (4 + 192)) ** 0.5
    assert 0.98 * bound < queries.abs().max() <= bound
    zero = vitlab.create("ViT-Ti/16", 3, 32, zero_head=True)
    assert not zero(torch.randn(2, 3, 32, 32)).any()


def test_one_generator_decides_every_weight() -> None:
    def weights(seed: int) -> torch.Tensor:
        model = vitlab.create("ViT-Ti/16", 3, 32, generator=torch.Generator().manual_seed(seed))
        return torch.cat([weight.flatten() for weight in model.parameters()])

    before = torch.random.get_rng_state()
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert torch.equal(before, torch.random.get_rng_state())  # nobody else's numbers were taken


def test_dropout_acts_in_training_only() -> None:
    model = vitlab.create("ViT-Ti/8", 5, 16, dropout=0.5, depth=2)
    images = torch.randn(2, 3, 16, 16)
    assert not torch.equal(model.train()(images), model(images))
    assert torch.equal(model.eval()(images), model(images))


def test_images_of_the_wrong_shape_are_refused() -> None:
    model = vitlab.create("ViT-Ti/8", 5, 16)
    with pytest.raises(ValueError, match=r"images must be \(B, 3, 16, 16\), not \(2, 1, 24, 16\)"):
        model(torch.randn(2, 1, 24, 16))
    for images, what in (
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "torch.uint8"),
        ([], "list"),
    ):
        with pytest.raises(
            OptionError, match=f"must be a tensor of normalized numbers, not {what}"
        ):
            model(images)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["image", "grid"])
def test_rotary_positions_turn_in_fp32_in_a_model_of_bf16(kind: str) -> None:
    name = "ViT(width=64,depth=1,heads=2,mlp=64)/4"
    model: Any = vitlab.create(name, 3, 64, positions="rope", rope_kind=kind)
    half = copy.deepcopy(model).bfloat16()
    for part in (model, half):
        part.positions.load_state_dict(half.positions.state_dict())  # frequencies, as rounded
    heads = torch.randn(2, 2, model.config.length, 32).bfloat16()
    turned = half.positions[0].turn(heads)
    assert torch.equal(turned, model.positions[0].turn(heads.float()).bfloat16())
    assert turned.dtype is torch.bfloat16
