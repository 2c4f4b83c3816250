"""A linear layer that learns by oneDNN computes what PyTorch's own computes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitlab
from vitlab.models.products import trained_linear
from vitlab.models.products.trained_linear import TrainedLinear

needs_onednn = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="PyTorch without oneDNN",
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let any product go to oneDNN, and list which do."""
    calls: list[str] = []
    compute = trained_linear.onednn

    def noted(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append("y" if weight.is_contiguous() else "dx")
        return compute(values, weight, bias)

    monkeypatch.setattr(trained_linear, "WORTH", 0)
    monkeypatch.setattr(trained_linear, "prefers_onednn", lambda: True)
    monkeypatch.setattr(trained_linear, "onednn", noted)
    return calls


def a_layer(bias: bool = True) -> tuple[TrainedLinear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    layer = TrainedLinear(48, 80, bias=bias)
    for weight in layer.parameters():
        nn.init.normal_(weight, generator=generator)
    values = torch.randn(3, 50, 48, generator=generator)
    return layer, values, torch.randn(3, 50, 80, generator=generator)


def gradients(compute: Any, inputs: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    wanted = [each for each in inputs if each.requires_grad]
    y = compute(*inputs)
    return (y.detach(), *torch.autograd.grad(y, wanted, grad))


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", ["nothing", "values", "weight"])
def test_it_agrees_with_pytorch(small: list[str], bias: bool, frozen: str) -> None:
    layer, values, grad = a_layer(bias)
    values.requires_grad_(frozen != "values")
    layer.weight.requires_grad_(frozen != "weight")
    inputs = [values, layer.weight, *([layer.bias] if bias else [])]
    found = gradients(lambda x, *_: layer(x), inputs, grad)
    assert small == ["y"] + ["dx"] * (frozen != "values")
    exact = [each.detach().double().requires_grad_(each.requires_grad) for each in inputs]
    for mine, theirs in zip(found, gradients(F.linear, exact, grad.double()), strict=True):
        assert mine.dtype is torch.float32
        away = (mine - theirs).norm() / theirs.norm()
        assert away < 1e-6  # fp32 rounding: 2e-7 with MKL
    again = gradients(lambda x, *_: layer(x), inputs, grad)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


@needs_onednn
def test_inputs_need_not_be_contiguous(small: list[str]) -> None:
    layer, values, grad = a_layer()
    turned = values.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    strided = grad.transpose(0, 1).contiguous().transpose(0, 1)
    inputs = [turned, layer.weight, layer.bias]
    found = gradients(lambda x, *_: layer(x), inputs, strided)
    for mine, theirs in zip(found, gradients(F.linear, inputs, grad), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_a_gradient_can_be_differentiated(small: list[str]) -> None:
    layer, values, _ = a_layer()

    def penalty(compute: Any) -> Tensor:
        x = values.clone().requires_grad_()
        (slope,) = torch.autograd.grad(compute(x).square().sum(), x, create_graph=True)
        (twice,) = torch.autograd.grad(slope.square().sum(), layer.weight)
        return twice

    theirs = penalty(lambda x: F.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(penalty(layer), theirs, rtol=1e-4, atol=1e-2)


def test_only_what_gains_goes_to_onednn(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, values, _ = a_layer()
    with torch.no_grad():
        layer(values)
    with torch.autocast("cpu", torch.bfloat16):
        layer(values)
    layer.eval()(values)
    layer.double().train()(values.double())
    layer.float().to("meta")(values.to("meta"))
    layer, values, _ = a_layer()
    monkeypatch.setattr(trained_linear, "WORTH", 2**26)
    layer(values)
    monkeypatch.setattr(trained_linear, "WORTH", 0)
    monkeypatch.setattr(trained_linear, "prefers_onednn", lambda: False)
    layer(values)
    assert small == []


@needs_onednn
def test_the_gradient_of_a_model_is_that_of_pytorch(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = vitlab.create("ViT(width=48,depth=2,heads=2,mlp=96)/8", 5, 32)
    nn.init.normal_(model.head.classify.weight, std=0.1)
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])

    def learned() -> list[Tensor]:
        loss = F.cross_entropy(model.train()(images), labels)
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    found, used = learned(), list(small)
    assert len(used) == 16  # four layers in two blocks, forward and backward
    monkeypatch.setattr(trained_linear, "prefers_onednn", lambda: False)
    for mine, theirs in zip(found, learned(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
