"""The first pass of an image: scores, every head's attention in a byte each, all tokens."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.device import exact
from vitlab.evaluation.infer import probabilities
from vitlab.inspect.attention import LATE, pool_attention, rollouts
from vitlab.inspect.look import Look, attention_layers, look
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.model import DenseFeatures, Model
from vitlab.models.vit import VisionTransformer

Grid = tuple[int, int]
Box = tuple[float, float, float, float]
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
        attention: of every head of every layer; None where there is none, or too much
        rollouts: with `attention`, the share of each patch that reaches the classifier, through the
            first layers up to each: (rows, columns)
        late: with `attention`, the same through the last three layers: what shows the object
        pool: the attention that the pool's queries pay; None without one
    """

    image: Tensor
    box: Box
    probabilities: NDArray[np.float64]
    layers: tuple[DenseFeatures, ...]
    last: DenseFeatures
    attention: "Attended | None" = None
    rollouts: tuple[Tensor, ...] = ()
    late: Tensor | None = None
    pool: "Attended | None" = None

    @property
    def grid(self) -> Grid:
        """Rows and columns of what leaves the model."""
        rows, columns = self.last.map.shape[-2:]
        return rows, columns

    @cached_property
    def nbytes(self) -> int:
        """Bytes in memory."""
        seen = sum(each.nbytes for each in (self.attention, self.pool) if each is not None)
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
    seen = look(model, image)
    common = (
        image,
        box,
        chances(model, seen.logits)[0] if has_classes(model) else np.empty(0),
        tuple(_on_cpu(seen, layer) for layer in range(len(seen.outputs))),
        _on_cpu(seen, None),
    )
    if not isinstance(model, VisionTransformer):
        return FirstPass(*common)
    pool = pool_attention(seen)
    queries = None if pool is None else Attended.single(pool.flatten(1, 2)[:, :, None])
    if not attention:
        return FirstPass(*common, pool=queries)
    attended = Attended(model.config.branches * model.config.heads)
    last = deque[Tensor](maxlen=LATE)

    def kept() -> Iterator[Tensor]:
        for weights in seen.attention():
            attended.add(weights)
            last.append(weights)
            yield weights

    through = tuple(each[0].cpu() for each in rollouts(seen, maps=kept()))
    *_, late = rollouts(seen, maps=last)
    return FirstPass(*common, attended, through, late[0].cpu(), queries)


def _on_cpu(seen: Look, layer: int | None) -> DenseFeatures:
    """Return what leaves a layer, (1, D, rows, columns) beside (1, prefix, D), to be kept."""
    return DenseFeatures(*(each.float().cpu() for each in seen.dense(layer)))


def has_classes(model: Model) -> bool:
    """Return whether a model scores the classes once per image."""
    return model.config.classes > 0 and model.config.answers == 1


def chances(model: Model, logits: Tensor) -> NDArray[np.float64]:
    """Return the probabilities that `vitlab.predict` gives: (B, classes) -> float64."""
    return probabilities(exact(logits), model).cpu().numpy()


class Attended:
    """The attention of every head of every layer, for one image.

    A number is `largest * byte / 255`, where `largest` is that of its head for the token that
    attends: half a percent of it is lost at most, however small it is.

    Args:
        heads: of a layer; one with fewer has heads of zeros at the end
    """

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self._bytes: list[NDArray[np.uint8]] = []
        self._largest: list[NDArray[np.float32]] = []

    @classmethod
    def single(cls, weights: Tensor) -> "Attended":
        """Keep a single layer: (1, heads, tokens that attend, N)."""
        found = cls(weights.shape[1])
        found.add(weights)
        return found

    @property
    def tokens(self) -> int:
        """How many attend in each layer."""
        return self._bytes[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(each.nbytes for each in self._bytes) + sum(each.nbytes for each in self._largest)

    def add(self, weights: Tensor) -> None:
        """Add a layer: (1, heads, tokens that attend, N)."""
        weights = weights[0].float()
        missing = self.heads - len(weights)
        if missing:
            weights = torch.nn.functional.pad(weights, (0, 0, 0, 0, 0, missing))
        largest = weights.amax(-1, keepdim=True)
        scale = LEVELS / largest.clamp(min=torch.finfo(torch.float32).tiny)
        self._bytes.append((weights * scale).round().to(torch.uint8).cpu().numpy())
        self._largest.append(largest[..., 0].cpu().numpy())

    def of(self, token: int) -> bytes:
        """Return what one token attends to.

        Returns:
            float32, little-endian, (layers, heads): the largest number; then uint8, (layers, heads,
            N).
        """
        largest = np.stack([each[:, token] for each in self._largest]).astype("<f4")
        return largest.tobytes() + np.stack([each[:, token] for each in self._bytes]).tobytes()


def attention_bytes(config: ModelConfig) -> int:
    """Return the bytes of an image's attention; 0 for a model without."""
    if not isinstance(config, ViTConfig):
        return 0
    tokens = config.prefix + (config.tokens if config.fit == "native" else math.prod(config.grid))
    return attention_layers(config) * config.branches * config.heads * tokens * (tokens + 4)


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
