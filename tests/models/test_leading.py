"""In training, the last block computes only the tokens that the head reads."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitlab
from vitlab.errors import OptionError
from vitlab.models.encoder.block import MLP
from vitlab.models.encoder.recomputing import recomputed

SHAPE = "ViT(width=24,depth=3,heads=2,mlp=32)/8"
READ = {
    "token": {},
    "registers": {"registers": 2, "pool": "prefix"},
    "one of them": {"registers": 2, "pool": "prefix", "pool_tokens": (1,)},
    "bias": {"positions": "bias"},
    "every block": {"positions_at": "every"},
    "norm after": {"norm_order": "after"},
    "pooled norm": {"norm_at": "pooled"},
}
WHOLE: dict[str, dict[str, Any]] = {
    "mean": {"pool": "mean"},
    "both": {"pool": "both"},
    "queries": {"pool": "attention"},
    "axial": {"attention": "axial", "pool": "mean", "class_token": False},
}


def a_model(**choices: Any) -> Any:
    model: Any = vitlab.create(SHAPE, 3, 32, **choices)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.05)
    return model.train()


def tokens_of_last_mlp(model: Any, images: Tensor) -> int:
    seen: list[int] = []
    body: MLP = model.blocks[-1].mlp[0].body
    handle = body.register_forward_hook(lambda _, given, out: seen.append(given[0].shape[1]))
    model(images)
    handle.remove()
    return seen[0]


def learned(model: nn.Module, scores: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = F.cross_entropy(scores, torch.tensor([0, 2]))
    model.zero_grad()
    loss.backward()
    return loss.detach(), {
        n: w.grad.clone() for n, w in model.named_parameters() if w.grad is not None
    }


@pytest.mark.parametrize("kind", READ)
def test_loss_and_gradients_are_those_of_all_tokens(kind: str) -> None:
    model, images = a_model(**READ[kind]), torch.randn(2, 3, 32, 32)
    assert tokens_of_last_mlp(model, images) == model.config.prefix
    loss, grads = learned(model, model(images))
    expected, reference = learned(model, model.head(model.head.features(model.encode(images))))
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert grads.keys() == reference.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, reference[name], atol=2e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize("kind", WHOLE)
def test_all_tokens_are_computed_where_others_are_read(kind: str) -> None:
    model = a_model(**WHOLE[kind])
    assert model.head.leading is None
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 3)


def test_evaluation_computes_all_tokens() -> None:
    model, images = a_model().eval(), torch.randn(2, 3, 32, 32)
    assert tokens_of_last_mlp(model, images) == 17
    assert model.train()(images).shape == (2, 3)


def test_stochastic_depth_drops_the_same_images() -> None:
    model, images = a_model(drop_path=0.5), torch.randn(6, 3, 32, 32)
    torch.manual_seed(3)
    found = model(images)
    torch.manual_seed(3)
    expected = model.head(model.head.features(model.encode(images)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_recomputing_gives_the_same_gradients() -> None:
    model, images = a_model(), torch.randn(2, 3, 32, 32)
    _, grads = learned(model, model(images))
    with recomputed(model, True):
        _, again = learned(model, model(images))
    assert all(torch.equal(again[name], grad) for name, grad in grads.items())


def test_tokens_of_the_pool_are_checked() -> None:
    name, some = "ViT(width=24,depth=1,heads=2,mlp=48)/4", {"pool": "prefix", "registers": 3}
    with pytest.raises(OptionError, match=r"pool_tokens=\(0, 3\) has a number above 2"):
        vitlab.create(name, 2, 16, **some, pool_tokens=(0, 3))
    with pytest.raises(OptionError, match=r"pool_tokens=\(0,\) applies only with pool=prefix"):
        vitlab.create(name, 2, 16, pool_tokens=(0,))
