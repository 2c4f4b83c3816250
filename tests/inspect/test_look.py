"""One captured pass: it is passed once, and gives what the functions give for model and images."""

from typing import Any

import pytest
import torch

import vitlab
from vitlab.errors import OptionError
from vitlab.inspect.evidence import Gradients

KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "attention pooling": {"pool": "attention", "queries": 2},
    "branches": {"branches": 2, "positions_at": "every"},
}
OF_PATCHES = ("token_norms", "token_similarity", "norm_map", "similar_patches", "feature_colors")
OF_ATTENTION = (
    "rollout", "late_attention", "attention_distance", "attention_elsewhere", "attention_entropy",
)  # fmt: skip


def made(kind: str) -> Any:
    torch.manual_seed(0)
    name = "ViT(width=16,depth=4,heads=2,mlp=16)/8"
    return vitlab.create(name, 3, (24, 32), zero_head=False, **KINDS[kind]).train()


@pytest.mark.parametrize("kind", KINDS)
def test_everything_follows_from_one_pass(kind: str) -> None:
    model, images = made(kind), torch.randn(2, 3, 24, 32)
    expected = {
        name: getattr(vitlab.inspect, name)(model, images) for name in (*OF_PATCHES, *OF_ATTENTION)
    }
    passed: list[int] = []
    model.stem.register_forward_hook(lambda _, given, out: passed.append(len(out)))
    seen = vitlab.inspect.look(model, images)
    for kept in (False, True):
        for name, value in expected.items():
            assert torch.equal(getattr(vitlab.inspect, name)(seen), value), name
        if not kept:
            seen.kept()
    assert passed == [2]
    assert model.training
    model.eval()
    with torch.inference_mode():
        torch.testing.assert_close(seen.logits, model(images))
        torch.testing.assert_close(seen.last, model.encode(images))
        for own, their in zip(seen.maps, model.attention_maps(images), strict=True):
            assert torch.equal(own, their)
        layers = model.intermediates(images, range(5))
    assert all(map(torch.equal, seen.layers, layers))


def test_the_attention_of_late_layers_needs_no_other() -> None:
    model: Any = made("class token").eval()
    seen = vitlab.inspect.look(model, torch.randn(1, 3, 24, 32))
    computed: list[int] = []
    for number, block in enumerate(model.blocks, 1):
        qkv = block.attention[0].body.qkv
        qkv.register_forward_hook(lambda *_, number=number: computed.append(number))
    vitlab.inspect.late_attention(seen)
    assert computed == [2, 3, 4]


def test_a_look_at_a_resnet_has_maps_and_no_attention() -> None:
    torch.manual_seed(0)
    model: Any = vitlab.create("BiT-R(1-1)x1", 3, 32, zero_head=False).eval()
    images = torch.randn(2, 3, 32, 32)
    seen = vitlab.inspect.look(model, images)
    with torch.inference_mode():
        torch.testing.assert_close(seen.logits, model(images))
    for name in ("token_similarity", "norm_map", "similar_patches"):
        look = getattr(vitlab.inspect, name)
        torch.testing.assert_close(look(seen), look(model, images))
    for name in OF_ATTENTION:
        with pytest.raises(OptionError, match="has no attention maps"):
            getattr(vitlab.inspect, name)(seen)
    with pytest.raises(OptionError, match=r"layer 3 of .*: choose from 0 to 2"):
        vitlab.inspect.norm_map(seen, layer=3)


def test_relevance_and_gradcam_share_a_pass() -> None:
    model, images, classes = made("branches"), torch.randn(2, 3, 24, 32), torch.tensor([2, 0])
    passed: list[int] = []
    handle = model.stem.register_forward_hook(lambda _, given, out: passed.append(len(out)))
    found = Gradients(model, images, classes)
    pair = found.relevance(), found.gradcam()
    assert passed == [2]
    handle.remove()
    assert torch.equal(pair[0], vitlab.inspect.relevance(model, images, classes))
    assert torch.equal(pair[1], vitlab.inspect.gradcam(model, images, classes))
