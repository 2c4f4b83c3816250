"""Passes of each mode: what they compute, and the memory they take."""

import pytest
import torch

import vitlab
from vitlab.errors import OptionError
from vitlab.measure.modes import Mode, Passes, Precision

CPU = torch.device("cpu")
NAME = "ViT(width=16,depth=2,heads=2,mlp=32)/4"


@pytest.mark.parametrize("mode", ["eager", "fused", "accelerated", "compiled"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
def test_every_mode_computes_the_model(
    mode: Mode, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vitlab.create(NAME, 3, 8, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(model.head.classify.weight)
    if (mode, precision) == ("accelerated", "bf16-pure"):
        with pytest.raises(OptionError, match="fp32 or bf16"):
            Passes(model, mode, precision, CPU)
        return
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda net, **how: compiled.append(how) or net)
    passes = Passes(model, mode, precision, CPU)
    scores = passes.passes(4)()
    assert compiled == ([{"dynamic": False}] if mode == "compiled" else [])
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    want = model.eval()(images).detach()
    away = 1e-4 if precision == "fp32" else 0.1
    assert isinstance(scores, torch.Tensor)
    assert torch.allclose(scores.float(), want, atol=away * float(want.abs().max()))
    assert scores.is_inference()
    assert passes.precision == precision
    assert next(model.parameters()).requires_grad  # the model itself is left as it is


def test_the_memory_of_an_accelerated_model_has_its_packed_weights() -> None:
    model = vitlab.create("ViT(width=256,depth=2,heads=4,mlp=1024)/8", 3, 16)
    size = sum(weight.numel() for weight in model.parameters())
    for precision, each in (("fp32", 4), ("bf16", 2)):
        found = Passes(model, "accelerated", precision, CPU).counted(1)  # type: ignore[arg-type]
        assert each * 0.95 * size < found < each * 1.2 * size
    pure = Passes(model, "eager", "bf16-pure", CPU).counted(1)
    assert 2 * size < pure < 2.2 * size


def test_a_resnet_is_accelerated_in_fp32_and_says_so() -> None:
    model = vitlab.create("BiT-R(1-1)x1", 3, 32)
    assert Passes(model, "accelerated", "bf16", CPU).precision == "fp32"
