"""Maps of one class: against transformers' and timm's attention and gradients, layer by layer."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

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


IMAGES = torch.randn(2, 3, 24, 32, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([2, 0])


@pytest.mark.parametrize(
    "choices",
    [{"pool": "mean", "registers": 2, "class_token": True}, {"positions": "rope", "qk_norm": True}],
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


def last_norms(model: Any) -> list[Any]:
    return [branch.norm for branch in model.blocks[-1].attention]


@pytest.mark.parametrize(
    "choices",
    [
        {"branches": 2, "registers": 1},
        {"attention": "axial", "pool": "mean"},
        {"stem": "resnet", "stages": (1,), "pool": "attention", "queries": 2},
        {"norm_order": "after", "class_token": True, "pool": "mean"},
        {"norm_order": "after", "branches": 2},
    ],
)
def test_gradcam_weighs_what_enters_the_last_attention(choices: dict[str, Any]) -> None:
    model, seen = tiny(**choices), list[Tensor]()
    if "norm_order" in choices:
        model.blocks[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for norm in last_norms(model) if "norm_order" not in choices else ():
        norm.register_forward_hook(lambda _, given, out: seen.append(out))
    scores = model(IMAGES.clone().requires_grad_()).reshape(2, -1, 3).mean(1)
    slopes = torch.autograd.grad(scores.gather(1, CLASSES[:, None]).sum(), seen)
    want = torch.zeros(2, 12)
    for values, slope in zip(seen, slopes, strict=True):
        patches = values.detach()[:, -12:]
        want += (patches * slope[:, -12:].mean(1, keepdim=True)).sum(-1)
    seen.clear()
    found = vitlab.inspect.gradcam(model, IMAGES, CLASSES)
    assert want.max() > 0
    torch.testing.assert_close(found.flatten(1), want.relu(), rtol=1e-4, atol=1e-6)


def test_a_fused_model_has_the_same_relevance() -> None:
    for choices in ({"branches": 2, "pool": "attention"}, {"layer_scale": 0.5}):
        model, images = tiny(**choices).double(), IMAGES.double()
        pair = (
            vitlab.inspect.relevance(each, images, CLASSES) for each in (model, vitlab.fuse(model))
        )
        torch.testing.assert_close(*pair, rtol=1e-6, atol=1e-9)


def test_classes_are_explained_within_inference_mode_too() -> None:
    model = tiny(positions="rope")
    with torch.inference_mode():
        inside = (
            vitlab.inspect.rollout(model, IMAGES),
            vitlab.inspect.gradcam(model, IMAGES.clone(), CLASSES.clone()),
            vitlab.inspect.relevance(model, IMAGES.clone(), CLASSES.clone()),
        )
    torch.testing.assert_close(inside[1], vitlab.inspect.gradcam(model, IMAGES, CLASSES))
    torch.testing.assert_close(inside[2], vitlab.inspect.relevance(model, IMAGES, CLASSES))


def test_what_has_no_meaning_is_refused_with_what_has() -> None:
    with pytest.raises(OptionError, match=r"no class token \(pool=mean\): vitlab.inspect.rollout"):
        vitlab.inspect.class_attention(tiny(pool="mean"), IMAGES)
    for explain in (vitlab.inspect.relevance, vitlab.inspect.gradcam):
        with pytest.raises(OptionError, match="classes must be from 0 to 2"):
            explain(tiny(), IMAGES, torch.tensor([3, 0]))
        with pytest.raises(OptionError, match=r"an int64 tensor, one per image: \(2,\)") as refused:
            explain(tiny(), IMAGES, torch.tensor([1]))
        with pytest.raises(OptionError, match=re.escape(str(refused.value))):
            explain(tiny(), IMAGES, [1, 2])
    with pytest.raises(OptionError, match=r"fusing .* has folded away: use the model itself"):
        vitlab.inspect.gradcam(vitlab.fuse(tiny()), IMAGES, CLASSES)
    resnet = vitlab.create("BiT-R(1-1)x1", 3, 32, zero_head=False)
    assert vitlab.inspect.gradcam(resnet, torch.randn(2, 3, 32, 32), CLASSES).shape == (2, 4, 4)
    with pytest.raises(OptionError, match="has no attention"):
        vitlab.inspect.relevance(resnet, torch.randn(2, 3, 32, 32), CLASSES)
    with pytest.raises(OptionError, match="has no classifier, and so no class to explain"):
        vitlab.inspect.gradcam(vitlab.create("ViT-Ti/8", 0, 16), IMAGES, CLASSES)
