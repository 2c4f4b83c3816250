"""What one pass of an image through a model shows: scores, every head's attention, all tokens."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.device import exact
from vitlab.evaluation.infer import probabilities
from vitlab.explore.seeing.attended import Attended
from vitlab.inspect.explaining.class_scores import Seen, watched
from vitlab.inspect.rollout import carried_on
from vitlab.models.config import ViTConfig
from vitlab.models.encoder.class_attention import with_idle_token
from vitlab.models.model import Model
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.vit import VisionTransformer

Grid = tuple[int, int]


@dataclass(frozen=True, eq=False)
class FirstPass:
    """One image as a model sees it; N counts class token, registers and patches.

    Attributes:
        image: normalized, (1, channels, H, W), on the model's device
        probabilities: float64 (classes,); none without a classifier
        layers: what leaves each, layer 0 what enters the first one: (N, D); of a ResNet the cells
            of its map, (rows * columns, features)
        grids: rows and columns of each of them
        last: what leaves the model, after the final norm: (N, D)
        attention: of every head of every layer; None where there is none, or too much
        rollouts: with `attention`, the share of each patch that reaches the classifier, through the
            first layers up to each: (patches,)
        pool: the attention that the pool's queries pay; None without one
    """

    image: Tensor
    probabilities: NDArray[np.float64]
    layers: tuple[Tensor, ...]
    grids: tuple[Grid, ...]
    last: Tensor
    attention: Attended | None = None
    rollouts: tuple[Tensor, ...] = ()
    pool: Attended | None = None

    @property
    def grid(self) -> Grid:
        """Rows and columns of what leaves the model."""
        return self.grids[-1]

    @cached_property
    def nbytes(self) -> int:
        """Bytes in memory."""
        seen = sum(each.nbytes for each in (self.attention, self.pool) if each is not None)
        return seen + sum(each.nbytes for each in (self.image, self.last, *self.layers))


@torch.inference_mode()
def first_pass(model: Model, image: Tensor, *, attention: bool = True) -> FirstPass:
    """Run a model once, and keep what its layers did.

    Args:
        model: any, in evaluation mode
        image: normalized, (1, channels, H, W)
        attention: whether to keep that, where there is any
    """
    if isinstance(model, VisionTransformer):
        return _of_transformer(model, image, attention)
    assert isinstance(model, ResNet)
    maps = model.intermediates(image, range(len(model.body.stages) + 1))
    last = model.encode(image)
    return FirstPass(
        image,
        chances(model, model(image))[0] if has_classes(model) else np.empty(0),
        tuple(each[0].flatten(1).T.float().cpu() for each in maps),
        tuple((each.shape[2], each.shape[3]) for each in maps),
        last[0].float().cpu(),
    )


def has_classes(model: Model) -> bool:
    """Return whether a model scores the classes once per image."""
    return model.config.classes > 0 and model.config.answers == 1


def chances(model: Model, logits: Tensor) -> NDArray[np.float64]:
    """Return the probabilities that `vitlab.predict` gives: (B, classes) -> float64."""
    return probabilities(exact(logits), model).cpu().numpy()


def _of_transformer(model: VisionTransformer, image: Tensor, attention: bool) -> FirstPass:
    config = model.config
    grid = config.grid_of((image.shape[2], image.shape[3]))
    with ExitStack() as stack:
        entering = stack.enter_context(watched(model.pre_norm))
        leaving = [stack.enter_context(watched(block)) for block in model.blocks]
        seen = [
            [stack.enter_context(watched(branch.body, inputs=True)) for branch in block.attention]
            for block in model.blocks
        ]
        tokens = model.encode(image)
    features = model.head.features(tokens)
    layers = [each[0][0] for each in (entering, *leaving)]
    if model.class_layers is not None:
        layers = [model.class_layers.before(each) for each in layers]
    maps = _maps(model, seen, leaving[-1][0][0]) if attention else iter(())
    attended, rollouts = _attended(model, maps, model.head.shares(tokens)[0].float())
    return FirstPass(
        image,
        chances(model, model.head(features))[0] if has_classes(model) else np.empty(0),
        tuple(each[0].float().cpu() for each in layers),
        (grid,) * len(layers),
        tokens[0].float().cpu(),
        attended if attention else None,
        rollouts,
        _of_pool(model, tokens),
    )


def _maps(model: VisionTransformer, seen: list[list[Seen]], last: Tensor) -> Iterator[Tensor]:
    """Yield every layer's attention as `model.attention_maps` has it: (1, heads, N, N)."""
    for block, inputs in zip(model.blocks, seen, strict=True):
        weights = torch.cat(
            [
                branch.body.weights(*given[0])
                for branch, given in zip(block.attention, inputs, strict=True)
            ],
            dim=1,
        )
        yield with_idle_token(weights) if model.class_layers is not None else weights
    if model.class_layers is not None:
        yield from model.class_layers.attention_maps(last)


def _attended(
    model: VisionTransformer, maps: Iterator[Tensor], pooled: Tensor
) -> tuple[Attended, tuple[Tensor, ...]]:
    """Keep attention one layer after the other, and roll it out as `vitlab.inspect.rollout`.

    Args:
        model: that they are of
        maps: of each layer, (1, heads, N, N)
        pooled: how much of each token enters the features, (N,)
    """
    config, rollouts = model.config, []
    found, flow = Attended(config.branches * config.heads), torch.eye(0)
    for weights in maps:
        found.add(weights)
        layer = carried_on(weights, config.heads)[0]
        flow = layer @ flow if len(flow) else layer
        rollouts.append((pooled @ flow)[config.prefix :].cpu())
    return found, tuple(rollouts)


def _of_pool(model: VisionTransformer, tokens: Tensor) -> Attended | None:
    """Return the attention of the pool's queries, each of its heads by itself."""
    pool, config = model.head.attend, model.config
    if pool is None:
        return None
    first = 0 if config.pool_prefix else config.prefix
    weights = pool.weights(tokens[:, first:]).flatten(1, 2)  # (1, heads * queries, N - first)
    found = Attended(weights.shape[1])
    found.add(torch.nn.functional.pad(weights, (first, 0))[:, :, None])
    return found


def layer_names(config: ViTConfig) -> list[str]:
    """Return what each layer of `model.attention_maps` is called."""
    if config.attention == "axial":
        return [f"{n} {lines}" for n in range(1, config.depth + 1) for lines in ("rows", "columns")]
    blocks = [str(number) for number in range(1, config.depth + 1)]
    return [*blocks, *(f"class {number}" for number in range(1, config.class_blocks + 1))]


def prefix_names(config: ViTConfig) -> list[str]:
    """Return what each token before the patches is called."""
    registers = [f"register {number}" for number in range(1, config.registers + 1)]
    return [*(["class token"] if config.has_token else []), *registers]
