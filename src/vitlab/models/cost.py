"""Parameters and multiply-adds, counted from the configuration."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.models.create import Model
from vitlab.models.position import bias_offsets
from vitlab.models.resnets.axial import AxialBody
from vitlab.models.resnets.body import BiTBody, HybridBody, conv_macs
from vitlab.models.stem import LocalStem


@dataclass(frozen=True)
class Part:
    """One part of a model: its parameters, and its multiply-adds for one image."""

    name: str
    params: int
    macs: int


@dataclass(frozen=True)
class Cost:
    """What a model costs at its configuration's image size.

    Multiply-adds are counted once each, as in the per-image figures of Three things: those of
    matrix products and convolutions, which PyTorch's own counter sees too, and the scale and shift
    of the encoder's norms, one an element. (The papers' counter takes five for a norm, up to 0.3%
    more in all.)
    """

    parts: tuple[Part, ...]

    @property
    def params(self) -> int:
        """Parameters in all."""
        return sum(part.params for part in self.parts)

    @property
    def macs(self) -> int:
        """Multiply-adds for one image."""
        return sum(part.macs for part in self.parts)


class Count(NamedTuple):
    """Parameters and multiply-adds of something; counts add up."""

    params: int = 0
    macs: int = 0

    def plus(self, *others: "Count") -> "Count":
        """The sum."""
        every = (self, *others)
        return Count(sum(each.params for each in every), sum(each.macs for each in every))

    def times(self, params: int, macs: int | None = None) -> "Count":
        """So many of it; `macs` where weights are shared and work is not."""
        return Count(self.params * params, self.macs * (params if macs is None else macs))


def cost(model: Model | ModelConfig) -> Cost:
    """Parameters and multiply-adds of a model, part by part.

    A Vision Transformer has stem (with class token, registers and positions), attention, MLP, norms
    (with LayerScale) and head; a ResNet has body and head.
    """
    config = model if isinstance(model, ModelConfig) else model.config
    if isinstance(config, ResNetConfig):
        head = dense(config.features, config.classes)
        return Cost((_part("body", _body(config)), _part("head", head)))
    assert isinstance(config, ViTConfig)
    layers = config.depth * config.branches * (2 if config.attention == "axial" else 1)
    each = Count(config.width * (3 if config.layer_scale else 2), config.tokens * config.width)
    # the last norm, wherever it is, and CLIP's before the encoder
    outer = int(config.norm_at != "none") + int(config.pre_norm)
    last = Count(2 * config.width, config.tokens * config.width).times(outer)
    return Cost(
        (
            _part("stem", _stem(config).plus(Count(_tokens(config)))),
            _part("attention", _attention(config)),
            _part("MLP", _mlp(config, config.tokens).times(layers)),
            _part("norms", each.times(2 * layers).plus(last)),
            _part("head", _head(config)),
        )
    )


def exaflops(model: Model | ModelConfig, images: float, epochs: float) -> float:
    """What training takes, in 10^18 operations, as ViT's Table 6 counts them.

    A multiply-add is two operations, and the backward pass is twice the forward one.

    Args:
        model: at the image size of the training
        images: in the training set (JFT-300M has 303 million)
        epochs: passes over them
    """
    return 6 * cost(model).macs * images * epochs / 1e18


def _part(name: str, count: Count) -> Part:
    return Part(name, count.params, count.macs)


def dense(inputs: int, outputs: int, places: int = 1, bias: bool = True) -> Count:
    """A dense layer, or a convolution's kernel, at so many places."""
    return Count(inputs * outputs + bias * outputs, places * inputs * outputs)


def _attention(config: ViTConfig) -> Count:
    """All layers: projections, scores, sums, and what relative positions add."""
    width, tokens = config.width, config.tokens
    qkv = dense(width, 3 * width, tokens, config.qkv_bias)
    out = dense(width, width, tokens, config.bias)
    head_norms = Count(4 * (width // config.heads) if config.qk_norm else 0)
    each = qkv.plus(out, head_norms)
    branches = config.depth * config.branches
    if config.attention == "axial":
        rows, columns = config.grid
        scores = Count(0, branches * 2 * tokens * (rows + columns) * width)
        return each.times(2 * branches).plus(scores)
    total = each.plus(Count(0, 2 * tokens**2 * width)).times(branches)
    if config.positions == "relative":
        total = total.plus(Count(0, branches * tokens * (2 * tokens - 1) * width))
    return total


def _mlp(config: ViTConfig, places: int) -> Count:
    """One MLP."""
    inner = config.mlp * (2 if config.ffn == "swiglu" else 1)
    expand = dense(config.width, inner, places, config.bias)
    return expand.plus(dense(config.mlp, config.width, places, config.bias))


def _tokens(config: ViTConfig) -> int:
    """Parameters of class token, registers and positions."""
    width, tables = config.width, config.depth if config.positions_at == "every" else 1
    match config.positions:
        case "1d":
            places = tables * config.placed * width
        case "2d":
            places = tables * sum(config.grid) * (width // 2)
        case "relative":
            tables = 1 if config.positions_at == "shared" else config.depth
            places = tables * (2 * config.tokens - 1) * (width // config.heads)
        case "bias":
            tables = 1 if config.positions_at == "shared" else config.depth
            places = tables * bias_offsets(config) * config.heads
        case _:
            places = 0
    return config.prefix * width + places


def _stem(config: ViTConfig) -> Count:
    """The stem itself."""
    width, rows, columns = config.width, *config.size
    pixels = rows * columns
    match config.stem:
        case "linear":
            pixels = config.channels * config.patch**2
            patch = dense(pixels, width, math.prod(config.grid), config.stem_bias)
            return patch.plus(_stem_norm(config, width))
        case "hmlp":
            steps = int(math.log2(config.patch)) - 2
            total = dense(16 * config.channels, width // 4, pixels // 16)
            for step in range(1, steps + 1):
                wide = width if step == steps else width // 4
                places = pixels // (16 * 4**step)
                total = total.plus(dense(width, wide, places), _stem_norm(config, width // 4))
            return total.plus(_stem_norm(config, width))
        case "conv":
            steps, narrow, total = int(math.log2(config.patch)), config.channels, Count()
            for step in range(1, steps + 1):
                wide, places = width >> (steps - step), pixels // 4**step
                layer = dense(9 * narrow, wide, places, config.stem_norm == "none")
                total, narrow = total.plus(layer, _stem_norm(config, wide)), wide
            return total
        case "local":
            return _local(config)
        case "resnet":
            with torch.device("meta"):
                body = HybridBody(config.stages, config.channels)
            side = config.patch // body.stride
            project = dense(body.features * side**2, width, math.prod(config.grid))
            return _counted(body, config).plus(project)


def _stem_norm(config: ViTConfig, channels: int) -> Count:
    return Count(0 if config.stem_norm == "none" else 2 * channels)


def _local(config: ViTConfig) -> Count:
    """The local transformer: its blocks' weights once, their work in every patch."""
    inner, words, patches = config.width // 8, LocalStem.WORDS**2, math.prod(config.grid)
    side = config.patch // LocalStem.WORDS
    rows, columns = ((length - 1) // side + 1 for length in config.size)
    pixels = dense(49 * config.channels, inner, rows * columns)
    block = dense(inner, 3 * inner, words).plus(
        dense(inner, inner, words),
        Count(0, 2 * words**2 * inner),
        dense(inner, 4 * inner, words),
        dense(4 * inner, inner, words),
        Count(4 * inner),
    )
    project = dense(words * inner, config.width, patches)
    others = Count(words * inner + 2 * inner + 2 * config.width)  # places and the two norms
    return pixels.plus(block.times(LocalStem.DEPTH, LocalStem.DEPTH * patches), project, others)


def _head(config: ViTConfig) -> Count:
    """Pooling, the tanh layer and the classifier."""
    width, queries = config.width, config.queries
    total = dense(config.features, config.classes, queries) if config.classes else Count()
    if config.pre_logits:
        total = total.plus(dense(config.pooled, config.pre_logits, queries))
    if config.pool == "attention":
        total = total.plus(
            dense(width, width, queries),
            dense(width, 2 * width, math.prod(config.grid)),
            Count(0, 2 * queries * math.prod(config.grid) * width),
            dense(width, width, queries),
            _mlp(config, queries),
            Count(queries * width + 2 * width),  # the queries, and the norm
        )
    return total


def _body(config: ResNetConfig) -> Count:
    with torch.device("meta"):
        body = (
            AxialBody(config.stages, config.channels, config.size)
            if config.attention == "axial"
            else BiTBody(config.stages, config.channels, config.widen)
        )
    return _counted(body, config)


def _counted(body: HybridBody | BiTBody | AxialBody, config: ModelConfig) -> Count:
    """A convolutional body, by its shapes on no device."""
    params = sum(weight.numel() for weight in body.parameters())
    return Count(params, conv_macs(body, config.channels, config.size))
