"""One captured pass: what the functions give for model and images; bad input in one line."""

import sys
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from vitlab.errors import OptionError
from vitlab.inspect.evidence import Gradients
from vitlab.models.packed import Packed

KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "attention pooling": {"pool": "attention", "queries": 2},
    "branches": {"branches": 2, "positions_at": "every"},
}
OF_PATCHES = ("token_norms", "token_similarity", "norm_map", "similar_patches", "feature_colors")
OF_ATTENTION = (
    "rollout", "late_attention", "attention_distance", "attention_elsewhere", "attention_entropy",
)  # fmt: skip
IN_PARTS = ("attention_distance", "class_attention", "rollout", "relevance", "gradcam")
CLASSES = torch.tensor([0, 2, 1])
MORE: dict[str, tuple[Any, ...]] = {  # what the functions take beside a model and three images
    **dict.fromkeys((*OF_PATCHES, *OF_ATTENTION, "class_attention"), ()),
    **dict.fromkeys(("relevance", "gradcam"), (CLASSES,)),
}


def answer(name: str, model: Any, images: Any) -> torch.Tensor:
    """The result of one of the functions."""
    found: torch.Tensor = getattr(vitlab.inspect, name)(model, images, *MORE[name])
    return found


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


@pytest.mark.parametrize("pool", ["token", "attention"])
def test_one_at_a_time_is_as_good_as_all_together(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    name = "ViT(width=16,depth=2,heads=2,mlp=16)/8"
    model: Any = vitlab.create(name, 3, 16, pool=pool, zero_head=False)
    images = torch.randn(3, 3, 16, 16)
    together = {name: answer(name, model, images) for name in IN_PARTS}
    monkeypatch.setattr(sys.modules["vitlab.inspect.look"], "AT_ONCE", 1)  # not the function
    monkeypatch.setattr("vitlab.inspect.evidence.FEW", 1)
    passed: list[int] = []
    model.stem.register_forward_hook(lambda _, given, out: passed.append(len(out)))
    for name, value in together.items():
        again = answer(name, model, images)
        torch.testing.assert_close(again, value, rtol=1e-4, atol=1e-7, msg=name)
    assert set(passed) == {1}


MODEL = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", 3, 16, zero_head=False)
WRONG: dict[str, tuple[Any, str]] = {
    "1x1": (torch.zeros(1, 3, 1, 1), "patch=8"),
    "channels": (torch.zeros(1, 1, 16, 16), r"images must be \(B, 3, 16, 16\)"),
    "one image": (torch.zeros(3, 16, 16), r"images must be \(B, 3, 16, 16\)"),
    "none": (torch.zeros(0, 3, 16, 16), "no images: give at least one"),
    "no pixels": (torch.zeros(1, 3, 0, 0), "no images: give at least one"),
    "bytes": (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "normalized numbers, not torch.uint8"),
    "NaN": (torch.full((1, 3, 16, 16), torch.nan), "not finite"),
    "an array": (np.zeros((1, 3, 16, 16), np.float32), r"must be a tensor .*, not ndarray"),
    "a file": ("photo.jpg", r"must be a tensor .*, not str"),
    "packed": (Packed.of([torch.zeros(3, 16, 16)], 8), "packed images have no common"),
}


@pytest.mark.parametrize("name", MORE)
def test_images_that_do_not_fit_are_refused(name: str) -> None:
    for images, message in WRONG.values():
        with pytest.raises(OptionError, match=message) as refused:
            answer(name, MODEL, images)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["attention_distance", "attention_entropy"])
def test_streams_are_checked_batch_by_batch(name: str) -> None:
    measure = getattr(vitlab.inspect, name)
    for batches in ([], [torch.zeros(0, 3, 16, 16)]):
        with pytest.raises(OptionError, match="no images"):
            measure(MODEL, batches)
    with pytest.raises(OptionError, match="not finite"):
        measure(MODEL, [torch.ones(4, 3, 16, 16), torch.full((4, 3, 16, 16), torch.inf)])


def test_images_of_another_number_type_are_taken_as_the_models() -> None:
    images = torch.randn(3, 3, 16, 16)
    for name in MORE:
        found = answer(name, MODEL, images)
        torch.testing.assert_close(answer(name, MODEL, images.double()), found, msg=name)
        assert answer(name, MODEL, images.half()).dtype == found.dtype
