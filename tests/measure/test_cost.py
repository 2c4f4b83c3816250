"""Cost against the modules themselves, PyTorch's counter and the papers' figures."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import vitlab
from vitlab.models.attention import attention_weights
from vitlab.models.names import config_of

GMACS = {  # Three things, Table 1 and its models; ViT-H/14 as timm prints it
    "ViT-Ti/16": 1.26,
    "ViT-S/16": 4.61,
    "ViT-B/16": 17.58,
    "ViT-L/16": 61.60,
    "ViT-H/14": 167.4,
    "ViT-S18x2/16": 13.708,
    "ViT-B18x2/16": 52.5,
    "ViT-S24x2/16": 18.3,
    "ViT-B13/16": 19.04,
}

MODELS = [
    ("ViT-Ti/16", {}),
    ("ViT-Ti/8", {"pool": "mean", "positions": "none", "image_size": (32, 48)}),
    ("ViT-Ti3x2/16", {"pre_logits": 17, "qkv_bias": False, "channels": 1, "image_size": 64}),
    ("ViT(width=96,depth=6,heads=3,mlp=384)/2", {"image_size": 8, "channels": 1}),
]


@pytest.mark.parametrize("name", GMACS)
def test_the_papers_figures(name: str) -> None:
    """Theirs count a norm's work five times an element, ours once."""
    assert vitlab.measure.cost(config_of(name)).macs / 1e9 == pytest.approx(GMACS[name], rel=0.005)


@pytest.mark.parametrize(("name", "choices"), MODELS)
def test_parameters_are_those_of_the_modules(name: str, choices: dict[str, object]) -> None:
    model = vitlab.create(name, 7, **choices)
    price = vitlab.measure.cost(model)
    assert price.params == sum(weight.numel() for weight in model.parameters())
    parts = {part.name: part.params for part in price.parts}
    assert parts["attention"] == weights(model, "attention")
    assert parts["MLP"] == weights(model, "mlp")


def weights(model: vitlab.VisionTransformer, kind: str) -> int:
    bodies = (branch.body for block in model.blocks for branch in getattr(block, kind))
    return sum(weight.numel() for body in bodies for weight in body.parameters())


@pytest.mark.parametrize(("name", "choices"), MODELS)
def test_multiply_adds_are_those_that_torch_counts(
    name: str, choices: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With attention as plain products: the counter misses the fused kernel on a CPU."""
    monkeypatch.setattr(
        "vitlab.models.attention.attend", lambda q, k, v: attention_weights(q, k) @ v
    )
    model = vitlab.create(name, 7, **choices).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randn(1, model.config.channels, *model.config.size))
    parts = {part.name: part.macs for part in vitlab.measure.cost(model).parts}
    assert 2 * (sum(parts.values()) - parts["norms"]) == counter.get_total_flops()
    assert parts["norms"] < 0.01 * parts["MLP"]
