"""Maps of one class: against transformers' and timm's attention and gradients, layer by layer."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from transformers import ViTConfig as TheirConfig
from transformers import ViTForImageClassification

import vitlab
from vitlab.errors import OptionError


def scaled(model: Any, factor: float = 4.0) -> Any:
    """The same model with larger weights, whose attention differs from place to place."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(factor)
    return model.eval()


def tiny(**choices: Any) -> Any:
    torch.manual_seed(0)
    model = vitlab.create(
        "ViT(width=16,depth=3,heads=2,mlp=24)/8", 3, (24, 32), zero_head=False, **choices
    )
    return scaled(model)


IMAGES, CLASSES = torch.randn(2, 3, 24, 32), torch.tensor([2, 0])


def test_relevance_is_chefers_rule_on_transformers_attention(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = TheirConfig(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=48,
        image_size=32, patch_size=8, num_labels=4, attn_implementation="eager",
    )  # fmt: skip
    theirs = scaled(ViTForImageClassification(config))
    images, classes = torch.randn(2, 3, 32, 32), torch.tensor([3, 1])
    out = theirs(images, output_attentions=True)
    for weights in out.attentions:
        weights.retain_grad()
    out.logits.gather(1, classes[:, None]).sum().backward()
    flow = torch.eye(17).expand(2, -1, -1)
    for weights in out.attentions:
        carried = (weights * weights.grad).clamp(min=0).mean(1).detach()
        flow = flow + carried @ flow
    want = flow[:, 0, 1:].unflatten(1, (4, 4))
    theirs.save_pretrained(tmp_path)
    found = vitlab.inspect.relevance(vitlab.load(tmp_path), images, classes)
    assert found.shape == (2, 4, 4)
    assert want.std() > 1e-3
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-6)


def test_gradcam_is_its_formula_on_timms_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs: Any = timm.create_model(
        "vit_tiny_patch16_224", embed_dim=24, depth=3, num_heads=3, img_size=64, num_classes=4
    )
    scaled(theirs)
    images, classes = torch.randn(2, 3, 64, 64), torch.tensor([3, 1])
    seen: list[Tensor] = []
    theirs.blocks[-1].norm1.register_forward_hook(lambda _, given, out: seen.append(out))
    logits = theirs(images)
    (gradient,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), seen[0])
    maps, slopes = (
        each[:, 1:].permute(0, 2, 1).reshape(2, 24, 4, 4) for each in (seen[0], gradient)
    )
    want = torch.einsum("bc,bcij->bij", slopes.mean((2, 3)), maps).clamp(min=0)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    model = vitlab.load(tmp_path / "theirs.pth", heads=3)
    found = vitlab.inspect.gradcam(model, images, classes)
    assert want.max() > 0
    torch.testing.assert_close(found, want.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "choices",
    [
        {"pool": "mean", "registers": 2, "class_token": True},
        {"branches": 2},
        {"pool": "attention"},
        {"attention": "axial", "pool": "mean"},
        {"positions": "rope", "qk_norm": True},
        {"positions": "relative"},
        {"pool": "both"},
    ],
)
def test_every_kind_of_model_has_maps_of_its_classes(choices: dict[str, Any]) -> None:
    model = tiny(**choices).train()
    weights = [weight.requires_grad for weight in model.parameters()]
    for explain in (vitlab.inspect.relevance, vitlab.inspect.gradcam):
        found = explain(model, IMAGES, CLASSES)
        other = explain(model, IMAGES, torch.tensor([1, 1]))
        assert found.shape == (2, 3, 4)
        assert (found >= 0).all()
        assert not torch.equal(found, other)
        assert not found.requires_grad
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())
    assert [weight.requires_grad for weight in model.parameters()] == weights


def test_branches_of_which_one_does_nothing_are_one_branch() -> None:
    one, two = tiny(), tiny(branches=2)
    state = two.state_dict()
    for name, tensor in one.state_dict().items():
        state[name] = tensor
        other = name.replace("attention.0.", "attention.1.").replace("mlp.0.", "mlp.1.")
        if other != name:
            idle = ".project." in name or ".contract." in name
            state[other] = torch.zeros_like(tensor) if idle else tensor
    two.load_state_dict(state)
    torch.testing.assert_close(two(IMAGES), one(IMAGES))
    pair = (vitlab.inspect.relevance(each, IMAGES, CLASSES) for each in (one, two))
    torch.testing.assert_close(*pair)


def test_class_attention_is_a_row_of_the_maps() -> None:
    model = tiny(registers=1)
    maps = model.attention_maps(IMAGES)
    found = vitlab.inspect.class_attention(model, IMAGES)
    assert found.shape == (2, 2, 3, 4)
    torch.testing.assert_close(found[1, 1, 2, 3], maps[-1][1, 1, 0, 2 + 11])
    first = vitlab.inspect.class_attention(model, IMAGES, 1)
    torch.testing.assert_close(first[0, 0, 0, 0], maps[0][0, 0, 0, 2])
    with pytest.raises(OptionError, match="layer must be from 1 to 3, not 0"):
        vitlab.inspect.class_attention(model, IMAGES, 0)


def test_attention_of_a_pool_sums_to_one_over_the_patches() -> None:
    found = vitlab.inspect.class_attention(tiny(pool="attention", queries=2), IMAGES)
    assert found.shape == (2, 4, 3, 4)
    assert found.sum((2, 3)).detach().numpy() == pytest.approx(1, abs=1e-5)


def test_what_has_no_meaning_is_refused_with_what_has() -> None:
    with pytest.raises(OptionError, match=r"no class token \(pool=mean\): vitlab.inspect.rollout"):
        vitlab.inspect.class_attention(tiny(pool="mean"), IMAGES)
    cait = tiny(class_blocks=1)
    for explain in (vitlab.inspect.relevance, vitlab.inspect.gradcam):
        with pytest.raises(OptionError, match=r"use vitlab\.inspect\.occlusion"):
            explain(cait, IMAGES, CLASSES)
        with pytest.raises(OptionError, match="classes must be from 0 to 2"):
            explain(tiny(), IMAGES, torch.tensor([3, 0]))
    resnet = vitlab.create("BiT-R26x1", 3, 64, zero_head=False)
    assert vitlab.inspect.gradcam(resnet, torch.randn(2, 3, 64, 64), CLASSES).shape == (2, 2, 2)
    with pytest.raises(OptionError, match="has no attention"):
        vitlab.inspect.relevance(resnet, torch.randn(2, 3, 64, 64), CLASSES)
    with pytest.raises(OptionError, match="has no classifier, and so no class to explain"):
        vitlab.inspect.gradcam(vitlab.create("ViT-Ti/8", 0, 16), IMAGES, CLASSES)
