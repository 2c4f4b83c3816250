"""The first pass of an image: scores, the attention of every head, all tokens."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.decode.pixels import Box
from vitlab.device import exact
from vitlab.evaluation.infer import probabilities
from vitlab.inspect.attention import LATE, pool_attention, rollouts
from vitlab.inspect.look import Look, look
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.model import DenseFeatures, Model
from vitlab.models.vit import VisionTransformer

Grid = tuple[int, int]
Octets = tuple[NDArray[np.uint8], NDArray[np.float32]]  # (heads, tokens, N), (heads, tokens)
LEVELS = 255  # of a byte


@dataclass(frozen=True, eq=False)
class FirstPass:
    """One image as a model sees it; N counts class token, registers and patches.

    Attributes:
        image: normalized, (1, channels, H, W), on the model's device
        box: left, top, right and bottom of what the model sees, as fractions of the upright image
        probabilities: float64 (classes,); none without a classifier
        layers: what leaves each, as `model.intermediates` has it, on the CPU
        last: what leaves the model, after the final norm
        attention: of every head of every layer; none where there is none, or too much
        rollouts: with `attention`, the share of each patch that reaches the classifier, through the
            first layers up to each: (rows, columns)
        late: with `attention`, the same through the last three layers: what shows the object
        pool: the attention that the pool's queries pay, as of one layer; none without a pool
    """

    image: Tensor
    box: Box
    probabilities: NDArray[np.float64]
    layers: tuple[DenseFeatures, ...]
    last: DenseFeatures
    attention: tuple[Octets, ...] = ()
    rollouts: tuple[Tensor, ...] = ()
    late: Tensor | None = None
    pool: tuple[Octets, ...] = ()

    @property
    def grid(self) -> Grid:
        """Rows and columns of what leaves the model."""
        rows, columns = self.last.map.shape[-2:]
        return rows, columns

    @cached_property
    def nbytes(self) -> int:
        """Bytes in memory."""
        seen = sum(part.nbytes for each in (*self.attention, *self.pool) for part in each)
        tokens = sum(part.nbytes for each in (self.last, *self.layers) for part in each)
        return seen + self.image.nbytes + tokens


@torch.inference_mode()
def first_pass(
    model: Model, image: Tensor, box: Box = (0, 0, 1, 1), *, attention: bool = True
) -> FirstPass:
    """Run a model once, and keep what its layers did.

    Args:
        model: any, in evaluation mode
        image: normalized, (1, channels, H, W)
        box: of the image that it is
        attention: whether to keep that, where there is any
    """
    seen, chances = look(model, image), np.empty(0)
    if has_classes(model):  # as `vitlab.predict` gives them
        chances = probabilities(exact(seen.logits), model)[0].cpu().numpy()
    common = (
        image,
        box,
        chances,
        tuple(_on_cpu(seen, layer) for layer in range(len(seen.outputs))),
        _on_cpu(seen, None),
    )
    if not isinstance(model, VisionTransformer):
        return FirstPass(*common)
    pool = pool_attention(seen)
    queries = () if pool is None else (in_octets(pool.flatten(1, 2)[:, :, None]),)
    if not attention:
        return FirstPass(*common, pool=queries)
    kept, last = list[Octets](), deque[Tensor](maxlen=LATE)

    def keep(weights: Tensor) -> Tensor:
        kept.append(in_octets(weights))
        last.append(weights)
        return weights

    through = tuple(each[0].cpu() for each in rollouts(seen, maps=map(keep, seen.attention())))
    *_, late = rollouts(seen, maps=last)
    return FirstPass(*common, tuple(kept), through, late[0].cpu(), queries)


def _on_cpu(seen: Look, layer: int | None) -> DenseFeatures:
    """Return what leaves a layer, (1, D, rows, columns) beside (1, prefix, D), to be kept."""
    return DenseFeatures(*(each.float().cpu() for each in seen.dense(layer)))


def has_classes(model: Model) -> bool:
    """Return whether a model scores the classes once per image."""
    return model.config.classes > 0 and model.config.answers == 1


def in_octets(weights: Tensor) -> Octets:
    """Return the attention of a layer, (1, heads, tokens that attend, N), a number in a byte.

    A number is `largest * byte / 255`, where `largest` is that of its head for the token that
    attends: half a percent of it is lost at most, however small it is.
    """
    weights = weights[0].float()
    largest = weights.amax(-1)
    levels = weights * (LEVELS / largest.clamp(min=torch.finfo(torch.float32).tiny))[..., None]
    return levels.round().byte().cpu().numpy(), largest.cpu().numpy()


def attended(layers: Sequence[Octets], token: int) -> bytes:
    """Return what one token attends to; a layer with fewer heads has heads of zeros at the end.

    Returns:
        float32, little-endian, (layers, heads): the largest number; then uint8, (layers, heads, N).
    """
    shape = len(layers), max(len(largest) for _, largest in layers)
    most, found = np.zeros(shape, "<f4"), np.zeros((*shape, layers[0][0].shape[-1]), np.uint8)
    for number, (levels, largest) in enumerate(layers):
        most[number, : len(largest)] = largest[:, token]
        found[number, : len(largest)] = levels[:, token]
    return most.tobytes() + found.tobytes()


def attention_bytes(config: ModelConfig) -> int:
    """Return the bytes of an image's attention; 0 for a model without."""
    if not isinstance(config, ViTConfig):
        return 0
    tokens = config.prefix + (config.tokens if config.fit == "native" else math.prod(config.grid))
    return config.blocks * config.branches * config.heads * tokens * (tokens + 4)


def layer_names(config: ViTConfig) -> list[str]:
    """Return what each layer of `model.attention_maps` is called."""
    if config.attention == "axial":
        return [f"{n} {lines}" for n in range(1, config.depth + 1) for lines in ("rows", "columns")]
    return [str(number) for number in range(1, config.depth + 1)]


def prefix_names(config: ViTConfig) -> list[str]:
    """Return what each token before the patches is called."""
    registers = [f"register {number}" for number in range(1, config.registers + 1)]
    return [*(["class token"] if config.has_token else []), *registers]
