"""Training steps on random images: real ones, whose memory is counted by hand."""

import copy

import pytest
import torch

import vitlab
from vitlab.errors import OptionError
from vitlab.measure.modes import Precision
from vitlab.training.benchmark_step import RATE, PracticeSteps

CPU = torch.device("cpu")
NAME = "ViT(width=64,depth=3,heads=2,mlp=128)/4"


def made(name: str = NAME, size: int = 16) -> vitlab.VisionTransformer:
    model = vitlab.create(name, 3, size, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(model.head.classify.weight)
    return model


def test_a_step_is_that_of_adamw_with_a_clipped_gradient() -> None:
    model = made()
    steps = PracticeSteps(model, "fp32", CPU)
    batch = steps._batch(4)
    want = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(want.parameters(), lr=RATE, weight_decay=0.0)
    pixels = (batch.images.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    torch.nn.functional.cross_entropy(want(pixels), batch.labels).backward()
    torch.nn.utils.clip_grad_norm_(want.parameters(), 1.0)
    optimizer.step()
    steps.passes(4)()
    for (name, mine), theirs in zip(steps.model.named_parameters(), want.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=0.06 * RATE), name  # weight decay takes 5%
        assert not torch.equal(mine, model.get_parameter(name))
    assert steps.state.step == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
def test_memory_is_weights_gradients_moments_and_activations(precision: Precision) -> None:
    steps = PracticeSteps(made(), precision, CPU)
    params = sum(weight.numel() for weight in steps.model.parameters())
    own = {"fp32": 16, "bf16-pure": 18}[precision]  # weight, gradient, two moments
    assert own * params < steps.counted(1) < 1.3 * own * params
    some, many, more = (steps.counted(batch) for batch in (32, 64, 128))
    assert more - many == pytest.approx(2 * (many - some), rel=0.03)
    tokens = 17 * 64 * (4 if precision == "fp32" else 2)  # of one image, as products read them
    each = (many - some) / 32
    # a block keeps what its products read (1 + 1 + 1 + 2), queries, keys and values, and more
    assert 3 * 8 * tokens < each < 3 * 20 * tokens + 3 * 16 * 16 * 8


def test_a_model_without_one_classifier_has_no_such_step() -> None:
    with pytest.raises(OptionError, match="no single classifier"):
        PracticeSteps(vitlab.create(NAME, 0, 16), "fp32", CPU)
