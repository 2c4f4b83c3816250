"""Attention that learns in bf16 computes what the general form computes, bit by bit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitlab
from vitlab.models.encoder import attention
from vitlab.models.encoder.attention import attend
from vitlab.models.encoder.joint_attention import JointAttention

SHAPE = "ViT(width=48,depth=3,heads=3,mlp=96)/8"


def gathered(qkv: Tensor, heads: int) -> Tensor:
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return attend(q, k, v).transpose(1, 2).flatten(2)


def with_gradient(form: Any, qkv: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    found = form(qkv, 3)
    return found.detach(), torch.autograd.grad(found, qkv, grad)[0]


@pytest.mark.parametrize("tokens", [1, 5, 17, 65])
def test_output_and_gradient_have_the_same_bits(tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    qkv = torch.randn(4, tokens, 3 * 48, generator=generator).bfloat16().requires_grad_()
    grad = torch.randn(4, tokens, 48, generator=generator).bfloat16()
    joint = with_gradient(JointAttention.apply, qkv, grad)
    for mine, theirs in zip(joint, with_gradient(gathered, qkv, grad), strict=True):
        assert torch.equal(mine, theirs)
    exact = qkv.detach().double().requires_grad_()
    for mine, right in zip(joint, with_gradient(gathered, exact, grad.double()), strict=True):
        assert (mine - right).norm() <= 0.01 * right.norm()


def test_strided_gradients_are_taken() -> None:
    qkv = torch.randn(2, 9, 3 * 48).bfloat16().requires_grad_()
    grad = torch.randn(9, 2, 48).bfloat16().transpose(0, 1)
    strided = with_gradient(JointAttention.apply, qkv, grad)
    dense = with_gradient(JointAttention.apply, qkv, grad.contiguous())
    assert all(torch.equal(one, other) for one, other in zip(strided, dense, strict=True))


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """List what goes through the joint form."""
    seen: list[Tensor] = []
    suits = attention.suits_joint

    def noted(qkv: Tensor, training: bool) -> bool:
        seen.extend([qkv] if suits(qkv, training) else [])
        return suits(qkv, training)

    monkeypatch.setattr(attention, "suits_joint", noted)
    return seen


def learned(model: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
        loss = F.cross_entropy(model(images).float(), torch.tensor([0, 1]))
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def test_a_step_is_that_of_the_general_form(
    joint: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = vitlab.create(SHAPE, 4, 32).train()
    nn.init.normal_(model.head.classify.weight, std=0.1)
    found = learned(model, torch.bfloat16)
    assert len(joint) == 2  # the last block computes the class token only
    exact = learned(model, torch.float32)
    monkeypatch.setattr(attention, "suits_joint", lambda *_: False)
    for mine, theirs in zip(found, learned(model, torch.bfloat16), strict=True):
        assert torch.equal(mine, theirs)
    assert abs(found[0] - exact[0]) < 0.01
    grads, right = (torch.cat([g.flatten() for g in each[1:]]) for each in (found, exact))
    assert (grads - right).norm() < 0.03 * right.norm()


def test_inference_has_the_same_bits(joint: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model = vitlab.create(SHAPE, 4, 32)
    fast = vitlab.accelerate(model, device="cpu", precision="bf16", engine="packed")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        tokens = fast.encode(images)
        assert len(joint) == 3
    seen = images.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):  # what is looked at may be differentiated twice
        vitlab.create(SHAPE, 4, 32).eval()(seen)
    assert len(joint) == 3
    monkeypatch.setattr(attention, "suits_joint", lambda *_: False)
    with torch.inference_mode():
        assert torch.equal(fast.encode(images), tokens)


OTHERS: list[dict[str, Any]] = [
    {"positions": "rope"}, {"positions": "bias"}, {"qk_norm": True},
    {"pool": "mean", "class_token": False, "attention": "axial"},
]  # fmt: skip


def test_only_learning_in_bf16_takes_it_and_only_if_nothing_acts_within(
    joint: list[Tensor],
) -> None:
    for choices in OTHERS:
        learned(vitlab.create(SHAPE, 4, 32, **choices).train(), torch.bfloat16)
    model: Any = vitlab.create(SHAPE, 4, 32).train()
    learned(model, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        model.eval()(torch.randn(1, 3, 32, 32))
        with torch.no_grad():
            model.train()(torch.randn(1, 3, 32, 32))
    assert joint == []
