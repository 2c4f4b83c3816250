"""However many images pass at once, the answer is the same."""

import sys
from typing import Any

import pytest
import torch

import vitlab
from vitlab.inspect import evidence
from vitlab.inspect.look import together

LOOKS: dict[str, tuple[Any, ...]] = {
    "attention_distance": (),
    "class_attention": (),
    "rollout": (),
    "relevance": (torch.tensor([0, 2, 1]),),
    "gradcam": (torch.tensor([0, 2, 1]),),
}


@pytest.mark.parametrize("pool", ["token", "attention"])
def test_one_at_a_time_is_as_good_as_all_together(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model: Any = vitlab.create(
        "ViT(width=16,depth=2,heads=2,mlp=16)/8", 3, 16, pool=pool, zero_head=False
    )
    images = torch.randn(3, 3, 16, 16)
    looked = {
        name: getattr(vitlab.inspect, name)(model, images, *more) for name, more in LOOKS.items()
    }
    assert together(model, images) > 3
    monkeypatch.setattr(sys.modules[together.__module__], "AT_ONCE", 1)
    monkeypatch.setattr(evidence, "FEW", 1)
    passed: list[int] = []
    model.stem.register_forward_hook(lambda _, given, out: passed.append(len(out)))
    for name, more in LOOKS.items():
        again = getattr(vitlab.inspect, name)(model, images, *more)
        torch.testing.assert_close(again, looked[name], rtol=1e-4, atol=1e-7, msg=name)
    assert set(passed) == {1}
