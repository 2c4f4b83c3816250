"""Forms for training, bit by bit: joint attention, only leading tokens, stochastic depth."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitlab
from conftest import BRIEF, TINY
from distributed.ranks import on_ranks
from made_models import noisy
from vitlab.errors import OptionError
from vitlab.models.encoder import attention
from vitlab.models.encoder.attention import JointAttention, attend
from vitlab.models.encoder.block import MLP, Branch, draw_kept
from vitlab.models.encoder.recomputing import recomputed
from vitlab.recipes.recipe import Host

SHAPE = "ViT(width=24,depth=3,heads=2,mlp=32)/8"
READ = {
    "token": {},
    "registers": {"registers": 2, "pool": "prefix"},
    "one of them": {"registers": 2, "pool": "prefix", "pool_tokens": (0,)},
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
    return noisy(vitlab.create(SHAPE, 3, 32, **choices)).train()


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


JOINT = "ViT(width=48,depth=3,heads=3,mlp=96)/8"


def gathered(qkv: Tensor, heads: int) -> Tensor:
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return attend(q, k, v).transpose(1, 2).flatten(2)


def with_gradient(form: Any, qkv: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    found = form(qkv, 3)
    return found.detach(), torch.autograd.grad(found, qkv, grad)[0]


@pytest.mark.parametrize("tokens", [1, 5, 17, 65])
def test_output_and_gradient_have_the_same_bits(tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    qkv = torch.randn(4, tokens, 3 * 48, generator=generator).bfloat16().requires_grad_()
    grad = torch.randn(4, tokens, 48, generator=generator).bfloat16()
    joint = with_gradient(JointAttention.apply, qkv, grad)
    for mine, theirs in zip(joint, with_gradient(gathered, qkv, grad), strict=True):
        assert torch.equal(mine, theirs)
    exact = qkv.detach().double().requires_grad_()
    for mine, right in zip(joint, with_gradient(gathered, exact, grad.double()), strict=True):
        assert (mine - right).norm() <= 0.01 * right.norm()


def test_strided_gradients_are_taken() -> None:
    qkv = torch.randn(2, 9, 3 * 48).bfloat16().requires_grad_()
    grad = torch.randn(9, 2, 48).bfloat16().transpose(0, 1)
    strided = with_gradient(JointAttention.apply, qkv, grad)
    dense = with_gradient(JointAttention.apply, qkv, grad.contiguous())
    assert all(torch.equal(one, other) for one, other in zip(strided, dense, strict=True))


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """List what goes through the joint form."""
    seen: list[Tensor] = []
    suits = attention.suits_joint

    def noted(qkv: Tensor, training: bool) -> bool:
        seen.extend([qkv] if suits(qkv, training) else [])
        return suits(qkv, training)

    monkeypatch.setattr(attention, "suits_joint", noted)
    return seen


def learned_in(model: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
        loss = F.cross_entropy(model(images).float(), torch.tensor([0, 1]))
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def test_a_step_is_that_of_the_general_form(
    joint: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = vitlab.create(JOINT, 4, 32).train()
    nn.init.normal_(model.head.classify.weight, std=0.1)
    found = learned_in(model, torch.bfloat16)
    assert len(joint) == 2  # the last block computes the class token only
    exact = learned_in(model, torch.float32)
    monkeypatch.setattr(attention, "suits_joint", lambda *_: False)
    for mine, theirs in zip(found, learned_in(model, torch.bfloat16), strict=True):
        assert torch.equal(mine, theirs)
    assert abs(found[0] - exact[0]) < 0.01
    grads, right = (torch.cat([g.flatten() for g in each[1:]]) for each in (found, exact))
    assert (grads - right).norm() < 0.03 * right.norm()


def test_inference_has_the_same_bits(joint: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model = vitlab.create(JOINT, 4, 32)
    fast = vitlab.accelerate(model, device="cpu", precision="bf16", engine="packed")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        tokens = fast.encode(images)
        assert len(joint) == 3
    seen = images.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):  # what is looked at may be differentiated twice
        vitlab.create(JOINT, 4, 32).eval()(seen)
    assert len(joint) == 3
    monkeypatch.setattr(attention, "suits_joint", lambda *_: False)
    with torch.inference_mode():
        assert torch.equal(fast.encode(images), tokens)


OTHERS: list[dict[str, Any]] = [
    {"positions": "rope"}, {"positions": "bias"}, {"qk_norm": True},
    {"pool": "mean", "class_token": False, "attention": "axial"},
]  # fmt: skip


def test_only_learning_in_bf16_takes_it_and_only_if_nothing_acts_within(
    joint: list[Tensor],
) -> None:
    for choices in OTHERS:
        learned_in(vitlab.create(JOINT, 4, 32, **choices).train(), torch.bfloat16)
    model: Any = vitlab.create(JOINT, 4, 32).train()
    learned_in(model, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        model.eval()(torch.randn(1, 3, 32, 32))
        with torch.no_grad():
            model.train()(torch.randn(1, 3, 32, 32))
    assert joint == []


DEEP = "ViT(width=16,depth=2,heads=2,mlp=16)/8"


def inside(successes: float, draws: int, chance: float) -> bool:
    """Whether a binomial count is within 4.5 deviations of its mean."""
    deviation = (draws * chance * (1 - chance)) ** 0.5
    return abs(successes - draws * chance) <= 4.5 * deviation + 1e-6


@pytest.mark.parametrize(("count", "rate"), [(1, 0.05), (4, 0.1), (10, 0.3)])
def test_each_image_is_dropped_at_the_stated_rate(count: int, rate: float) -> None:
    torch.manual_seed(count)
    draws, kept = 2000, torch.zeros(count)
    numbers = []
    for _ in range(draws):
        chosen, weights = draw_kept(count, rate, torch.device("cpu"))
        kept[chosen[weights > 0]] += 1
        assert set(weights.tolist()) <= {0.0, weights.max().item()}
        numbers.append(int((weights > 0).sum()))
    whole = int(round(count * (1 - rate), 6))
    assert set(numbers) <= {whole, whole + 1}
    assert all(inside(draws - each, draws, rate) for each in kept.tolist())
    # between two whole numbers only the rounding is random
    assert inside(sum(numbers) - draws * whole, draws, round(count * (1 - rate), 6) - whole)


def a_branch(rate: float) -> Any:
    model: Any = vitlab.create(DEEP, 3, 16, drop_path=rate)
    return model.blocks[0].mlp[0]


def test_the_expectation_is_that_of_the_whole_branch() -> None:
    branch, tokens = a_branch(0.3), torch.randn(4, 5, 16)
    torch.manual_seed(0)
    with torch.no_grad():
        whole = branch.eval()(tokens)
        branch.train()
        draws = torch.stack([branch(tokens) for _ in range(1000)])
    ratio = draws.mean(0) / whole  # of each draw: 0 or 1 / 0.7
    deviation = (0.3 / 0.7 / 1000) ** 0.5
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=4.5 * deviation, rtol=0)


def test_dropped_images_cost_no_work() -> None:
    branch, tokens = a_branch(0.4), torch.randn(8, 5, 16)
    seen: list[int] = []
    branch.body.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    branch.eval()(tokens)
    for _ in range(20):
        branch.train()(tokens)
    assert seen == [8] + [5] * 20  # 4.8 are kept on average


def test_stochastic_depth_ramps_or_not() -> None:
    def rates(model: Any) -> list[float]:
        return [block.mlp[0].drop_path for block in model.blocks]

    assert rates(vitlab.create("ViT-Ti5/8", 2, 16, drop_path=0.2)) == [0.2] * 5
    ramp = rates(vitlab.create("ViT-Ti5/8", 2, 16, drop_path=0.2, drop_path_ramp=True))
    assert ramp == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def dropped(folder: Path, micro: int) -> list[int]:
    """Count images that are dropped from a branch, and all, in one process of a run."""
    counts = [0, 0]
    real = Branch.forward

    def forward(self: Any, tokens: Tensor, *where: Any) -> Tensor:
        out = real(self, tokens, *where)
        if self.training and self.drop_path:
            counts[0] += int((~out.detach().flatten(1).any(1)).sum())
            counts[1] += len(tokens)
        return out

    how = TINY | {"drop_path": 0.1, "batch": 16, "steps": 8, "micro_batch": micro, "ema": 0.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Branch, "forward", forward)
        vitlab.train(vitlab.recipe("digits", **how), folder, host=Host(workers=0, effort=BRIEF))
    return counts


def test_the_rate_of_a_run_does_not_depend_on_its_passes_and_processes(tmp_path: Path) -> None:
    """Four images at a time, rate 0.1: rounding to the nearest would drop none at all."""
    said = on_ranks(2, partial(dropped, tmp_path / "two", 4), tmp_path)
    values = [each["value"] for each in said]
    assert values[0] != values[1]  # each process draws by itself
    for gone, of in values:
        assert inside(gone, of, 0.1), (gone, of)
