"""Every kind of model: against the attention that its forward pass pays, recorded and followed.

The recorder takes the place of PyTorch's attention, so that nothing of what is tested is used to
compute what is expected; its gradients are PyTorch's own.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitlab

KINDS: dict[str, dict[str, Any]] = {
    "class token": {"layer_scale": 0.5},
    "registers": {"registers": 2},
    "mean": {"pool": "mean"},
    "mean beside a class token": {"pool": "mean", "class_token": True, "registers": 1},
    "mean of all tokens": {"pool": "mean", "class_token": True, "pool_prefix": True},
    "both": {"pool": "both", "registers": 1},
    "prefix": {"pool": "prefix", "registers": 2},
    "some of the prefix": {
        "pool": "prefix", "registers": 2, "class_token": True, "pool_tokens": (0, 2),
    },
    "attention pooling": {"pool": "attention", "pool_heads": 4},
    "queries over all tokens": {
        "pool": "attention", "queries": 3, "pool_prefix": True, "class_token": True,
    },
    "parallel branches": {"branches": 2, "registers": 1},
    "three branches, attention pooling": {"branches": 3, "pool": "attention", "qk_norm": True},
    "hybrid": {"stem": "resnet", "stages": (1,)},
    "hmlp": {"stem": "hmlp", "stem_norm": "layer"},
    "axial": {"attention": "axial", "pool": "mean"},
    "axial, parallel branches": {"attention": "axial", "pool": "mean", "branches": 2},
    "relative": {"positions": "relative"},
    "relative in every block": {"positions": "relative", "positions_at": "shared"},
    "BEiT's bias": {"positions": "bias", "pool": "mean", "class_token": True},
    "rotary": {"positions": "rope", "registers": 2, "rope_kind": "grid"},
    "norms after": {"norm_order": "after", "norm_inner_attention": True, "ffn": "swiglu"},
}  # fmt: skip
GRID, PATCH = (3, 4), 8
PLACES = [(row, column) for row in range(GRID[0]) for column in range(GRID[1])]


def model_of(kind: str) -> Any:
    """A tiny model whose attention differs from place to place and from head to head."""
    torch.manual_seed(0)
    model: Any = vitlab.create(
        "ViT(width=32,depth=2,heads=2,mlp=24)/8", 3, (24, 32), zero_head=False, **KINDS[kind]
    )
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim in (2, 3) and min(weight.shape[-2:]) > 1:
                weight.mul_(3)
            weight.add_(0.05 * torch.randn_like(weight))
    return model.eval()


class Paid:
    """One attention of a pass: what the softmax gives, and what weighs the values."""

    def __init__(self, softmax: Tensor, used: Tensor) -> None:
        used.retain_grad()
        self.softmax, self.used = softmax, used


@contextmanager
def recorded() -> Iterator[list[Paid]]:
    """Compute attention term by term, and keep it."""
    paid: list[Paid] = []

    def logits_of(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        return logits if mask is None else logits + mask

    def plain(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        weights = logits_of(q, k, attn_mask).softmax(-1)
        paid.append(Paid(weights, weights))
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", plain)
        yield paid


def sequences(layer: int) -> list[list[int]]:
    """The patches of each row or column, as an axial layer has them."""
    rows, columns = GRID
    if layer % 2:
        return [[row * columns + at for row in range(rows)] for at in range(columns)]
    return [[row * columns + at for at in range(columns)] for row in range(rows)]


def over_all(config: Any, layer: int, weights: Tensor, count: int) -> Tensor:
    """Attention within sequences, over the tokens of the image: -> (B, h, N, N)."""
    tokens = config.prefix + len(PLACES)
    full = torch.zeros(count, weights.shape[1], tokens, tokens)
    first = tokens - weights.shape[-1]
    if config.attention != "axial":
        full[:, :, first:, first:] = weights
        return full
    lines = sequences(layer)
    for image in range(count):
        for number, line in enumerate(lines):
            own = weights[image * len(lines) + number]
            for q, query in enumerate(line):
                for k, key in enumerate(line):
                    full[image, :, query, key] = own[:, q, k]
    return full


def layers_of(model: Any, paid: list[Paid], count: int) -> list[list[tuple[Tensor, Tensor]]]:
    """Of every layer and branch: the softmax, and attention times its gradient, over all tokens."""
    config, branches = model.config, model.config.branches
    order = [layer for layer in range(config.blocks) for _ in range(branches)]
    result: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(max(order) + 1)]
    for layer, each in zip(order, paid, strict=False):
        product = (each.used * each.used.grad).detach()
        pair = each.softmax.detach(), product
        result[layer].append(tuple(over_all(config, layer, part, count) for part in pair))
    return result


def pooled_rows(model: Any, pool: Tensor | None) -> Tensor:
    """How much of each token is pooled, (B or 1, N); `pool` is (B, h, queries, seen)."""
    config = model.config
    prefix, tokens = config.prefix, config.prefix + len(PLACES)
    if pool is not None:
        return F.pad(pool.mean((1, 2)), (tokens - pool.shape[-1], 0))
    token, mean = torch.zeros(2, 1, tokens)
    token[0, 0] = 1
    mean[0, 0 if config.pool_prefix else prefix :] = 1
    mean = mean / mean.sum()
    chosen = list(config.pool_tokens) or list(range(prefix))
    some = torch.zeros(1, tokens).index_fill(1, torch.tensor(chosen, dtype=torch.int64), 1.0)
    kinds = {"token": token, "mean": mean, "both": (token + mean) / 2}
    return kinds.get(config.pool, some / max(1, len(chosen)))


CAMPAIGN = {  # the others have their parts
    "class token", "mean", "both", "attention pooling", "axial", "hmlp", "rotary",
    "relative in every block", "three branches, attention pooling",
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.campaign if k in CAMPAIGN else ()) for k in KINDS]
)
def test_heads_rollout_and_relevance_are_those_of_the_attention_paid(kind: str) -> None:
    model, images = model_of(kind), torch.randn(2, 3, 24, 32, generator=seeded(1))
    classes, config = torch.tensor([2, 0]), model.config
    with recorded() as paid:
        logits = model(images).reshape(2, -1, 3).mean(1)
        logits.gather(1, classes[:, None]).sum().backward()
    layers = layers_of(model, paid, 2)
    last = paid[-1] if config.pool == "attention" else None
    prefix, tokens = config.prefix, config.prefix + len(PLACES)

    flow, relevant = torch.eye(tokens), torch.eye(tokens)
    for branches in layers:
        mixed = torch.eye(tokens)
        for weights, _ in branches:
            own = weights.mean(1)
            empty = own.sum(-1) == 0  # tokens that take no part keep what they have
            own = own + torch.diag_embed(empty.float())
            mixed = mixed + own / own.sum(-1, keepdim=True)
        flow = mixed / (1 + len(branches)) @ flow
        carried = sum(product.clamp(min=0).mean(1) for _, product in branches)
        relevant = relevant + carried @ relevant
    rows = pooled_rows(model, last and last.softmax.detach())[:, None]
    want = (rows @ flow)[:, 0, prefix:].unflatten(1, GRID)
    torch.testing.assert_close(vitlab.inspect.rollout(model, images), want, rtol=1e-4, atol=1e-6)
    if last is not None:
        product = (last.softmax * last.used.grad).detach().clamp(min=0).mean(1).sum(1, keepdim=True)
        rows = F.pad(product, (tokens - product.shape[-1], 0))
    want = (rows @ relevant)[:, 0, prefix:].unflatten(1, GRID)
    found = vitlab.inspect.relevance(model, images, classes)
    assert want.std() > 1e-4 * want.mean()
    torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-6)
    check_heads(model, images, layers)


def check_heads(model: Any, images: Tensor, layers: list[list[tuple[Tensor, Tensor]]]) -> None:
    """Distance and entropy of every head of the blocks, token by token."""
    config, distances, entropies = model.config, [], []
    apart = torch.tensor([[PATCH * math.dist(one, other) for other in PLACES] for one in PLACES])
    for branches in layers[: config.blocks]:
        weights = torch.cat([softmax for softmax, _ in branches], 1)
        seen = weights[:, :, config.prefix :, config.prefix :]
        distances.append((seen * apart).sum(-1).mean((0, 2)))
        own = weights / weights.sum(-1, keepdim=True)
        entropies.append(-(own * own.clamp(min=1e-30).log2()).sum(-1).mean((0, 2)))
    distance = vitlab.inspect.attention_distance(model, images).float()
    torch.testing.assert_close(distance, torch.stack(distances), rtol=1e-4, atol=1e-4)
    entropy = vitlab.inspect.attention_entropy(model, images).float()
    torch.testing.assert_close(entropy, torch.stack(entropies), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["registers", "rotary", "BEiT's bias"])
def test_images_of_another_size_are_as_of_a_resized_model(kind: str) -> None:
    model, images = model_of(kind), torch.randn(2, 3, 40, 24, generator=seeded(2))
    resized, classes = model.resize((40, 24)), torch.tensor([0, 2])
    for look in (vitlab.inspect.attention_distance, vitlab.inspect.rollout):
        torch.testing.assert_close(look(model, images), look(resized, images))
    for explain in (vitlab.inspect.relevance, vitlab.inspect.gradcam):
        found = explain(model, images, classes)
        assert found.shape == (2, 5, 3)
        torch.testing.assert_close(found, explain(resized, images, classes), rtol=1e-3, atol=1e-5)


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)
