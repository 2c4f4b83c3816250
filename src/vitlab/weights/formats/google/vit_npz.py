"""Google's `.npz`: ViT, AugReg, hybrids (vision_transformer), and big_vision's, named alike.

Sub-modules of a block are numbered through in the older files and by kind in the newer ones;
big_vision adds positions to patches only, and stores them elsewhere. GELU is the tanh
approximation, epsilon 1e-6, positions are resized bilinearly with aligned corners, images are in
[-1, 1] (REFERENCE: models_vit.py, checkpoint.py; big_vision's models/vit.py).
"""

import math
import re
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ViTConfig, map_stride
from vitlab.weights.formats.entries import Entry, computed, same, without_first_row
from vitlab.weights.formats.google import flax
from vitlab.weights.formats.origins import Origin
from vitlab.weights.formats.resnet_units import hybrid_parts, units_of
from vitlab.weights.formats.room import Hints, Reading, cannot
from vitlab.weights.source import Shape, Source

NAME = "Google's ViT (.npz)"
OLD = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
NEW = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
PLACES = (
    "Transformer/posembed_input/pos_embedding",
    "Transformer/pos_embedding",
    "pos_embedding",
)
PREFIXES = ("", "params/", "opt/target/", "opt/target/params/", "params/img/", "img/")


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a Vision Transformer.

    Raises:
        WeightsError: its tensors have unsupported shapes.
    """
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in source.shapes), None)
    if source.kind != "npz" or prefix is None:
        return None
    names = {key.removeprefix(prefix) for key in source.shapes if key.startswith(prefix)}
    shapes = {name: source.shapes[prefix + name] for name in names}
    fields, numbering = _encoder(shapes)
    fields |= _ends(shapes)
    place = next((name for name in PLACES if name in shapes), "")
    patches, own_row = _patches(shapes.get(place, (0,)), "cls" in shapes, fields, hints)
    fields["image_size"] = tuple(n * int(fields["patch"]) for n in patches)
    config = ViTConfig(**(fields | hints.choices))
    table = entries(config, numbering, place, own_row)
    wanted = [entry.renamed(lambda name: _stored(prefix, name, shapes)) for entry in table]
    others = f"(?!{re.escape(prefix)}).*" if prefix else "opt/state/.*"
    origins = dict.fromkeys(("heads", "image_size", "pool", "positions"), Origin.TENSORS)
    return Reading(NAME, config, wanted, {others: "not of the image model"}, origins)


def _stored(prefix: str, name: str, shapes: dict[str, Shape]) -> str:
    """The stored name of a tensor: models made by a scan have all their blocks in one array."""
    if found := re.fullmatch(r"Transformer/encoderblock_(\d+)/(.*)", name):
        stacked = f"Transformer/encoderblock/{found[2]}"
        if stacked in shapes:
            return f"{prefix}{stacked}[{found[1]}]"
    return prefix + name


def _encoder(shapes: dict[str, Shape]) -> tuple[dict[str, Any], tuple[str, str, str, str]]:
    """The fields of the encoder, and the names of a block's parts."""
    blocks = [n for n in shapes if re.match(r"Transformer/encoderblock", n)]
    stacked = any(n.startswith("Transformer/encoderblock/") for n in blocks)
    queries = sorted(n for n in blocks if n.endswith("/query/kernel"))
    if not queries or len(shapes[queries[0]]) != 3 + stacked:
        raise WeightsError(f"{NAME}: no attention kernels of shape (width, heads, head width)")
    query = queries[0]
    numbering = OLD if OLD[1] in query else NEW
    hidden = next((n for n in blocks if n.endswith(f"{numbering[3]}/Dense_0/kernel")), "")
    if not hidden:
        raise WeightsError(f"{NAME}: no MLP kernels in the blocks")
    width, heads, _ = shapes[query][stacked:]
    depth = shapes[query][0] if stacked else len(queries)
    fields = {"width": width, "depth": depth, "heads": heads, "mlp": shapes[hidden][-1]}
    return fields | {"gelu": "tanh", "fit": "squash"}, numbering


def _ends(shapes: dict[str, Shape]) -> dict[str, Any]:
    """The fields of the stem, the pool and the head."""
    if len(shapes["embedding/kernel"]) != 4:
        raise WeightsError(f"{NAME}: the patch kernel is not (rows, columns, channels, width)")
    side, _, channels, _ = shapes["embedding/kernel"]
    fields: dict[str, Any] = {"patch": side, "channels": channels}
    if "conv_root/kernel" in shapes:
        stages = units_of(shapes, r"block(\d+)/unit(\d+)/")
        channels = shapes["conv_root/kernel"][2]
        fields |= {"stem": "resnet", "stages": stages, "channels": channels}
        fields["patch"] = side * map_stride(stages)
    pooled = any(name.startswith("MAPHead_0/") for name in shapes)
    return fields | {
        "classes": shapes.get("head/bias", (0,))[0],
        "pre_logits": shapes.get("pre_logits/bias", (0,))[0],
        "pool": "attention" if pooled else "token" if "cls" in shapes else "mean",
    }


def _patches(
    table: tuple[int, ...], token: bool, fields: dict[str, object], hints: Hints
) -> tuple[tuple[int, int], bool]:
    """Rows and columns of patches, and whether the class token has a position of its own."""
    patch, stored = int(str(fields["patch"])), table[1] if len(table) == 3 else None
    chosen = hints.choices.get("image_size")
    for size in (chosen, None, hints.image_size or 224):  # the size it had, a square, the new size
        rows, columns = (size, size) if isinstance(size, int) else tuple(size or (0, 0))
        grid = (rows // patch, columns // patch)
        for own_row in (token, False):
            count = math.prod(grid) if stored is None else stored - own_row
            side = math.isqrt(count)
            if size is None and stored is not None and side**2 == count:
                return (side, side), bool(own_row)
            if size is not None and math.prod(grid) == count:
                return grid, bool(own_row) and stored is not None
    raise WeightsError(
        f"{NAME}: {table[1]} positions do not form a square: give image_size=(rows, columns), in "
        "pixels"
    )


def entries(
    config: ModelConfig,
    numbering: tuple[str, str, str, str] = OLD,
    place: str = PLACES[0],
    own_row: bool = True,
) -> list[Entry]:
    """List which tensors of a file make which of a model.

    Args:
        config: of the model
        numbering: names of a block's parts
        place: name of the positions; empty for big_vision's fixed ones, which are not stored
        own_row: the class token has a position of its own

    Raises:
        WeightsError: the model is not one of Google's Vision Transformers.
    """
    if not isinstance(config, ViTConfig) or config.branches > 1 or config.attention == "axial":
        raise cannot(NAME, config.name)
    table = [*_stem(config), *_positions(config, place, own_row)]
    for number in range(config.depth):
        table += _block(config, number, numbering)
    table += flax.norm("norm", "Transformer/encoder_norm")
    if config.pool == "attention":
        table += _pool(config)
    if config.pre_logits:
        table += flax.dense("head.pre_logits", "pre_logits")
    if config.classes:
        table += flax.dense("head.classify", "head")
    return table


def _stem(config: ViTConfig) -> list[Entry]:
    if config.stem == "linear":
        return flax.conv("stem.layers.0", "embedding", bias=True)
    table = flax.conv("stem.project", "embedding", bias=True)
    table += flax.conv("stem.body.root.reduce.conv", "conv_root")
    table += flax.norm("stem.body.root.reduce.norm", "gn_root")
    ends = {"reduce": "1", "middle": "2", "expand": "3", "shortcut": "_proj"}
    for ours, stage, unit, part in hybrid_parts(config.stages):
        theirs = f"block{stage + 1}/unit{unit + 1}"
        table += flax.conv(f"{ours}.conv", f"{theirs}/conv{ends[part]}")
        table += flax.norm(f"{ours}.norm", f"{theirs}/gn{ends[part]}")
    return table


def _positions(config: ViTConfig, place: str, own_row: bool) -> list[Entry]:
    """Class token and positions; big_vision's token holds its position already."""
    token = [same("token", "cls")] if config.has_token else []
    if config.positions == "none":
        return token
    if not place:
        return [*token, computed("positions.0.table", lambda: sincos(config))]
    if not config.has_token or own_row:
        return [*token, same("positions.0.table", place)]
    return [*token, without_first_row("positions.0.table", place)]


def sincos(config: ViTConfig) -> Tensor:
    """big_vision's fixed positions, sine and cosine of columns and of rows: (1, 1 + N, D)."""
    rows, columns = config.grid
    quarter = config.width // 4
    omega = 10_000 ** (-torch.arange(quarter, dtype=torch.float64) / (quarter - 1))
    y = torch.arange(rows, dtype=torch.float64).repeat_interleave(columns)[:, None] * omega
    x = torch.arange(columns, dtype=torch.float64).repeat(rows)[:, None] * omega
    table = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)[None].float()
    first = torch.zeros(1, int(config.has_token), config.width)
    return torch.cat([first, table], dim=1)


def _block(config: ViTConfig, number: int, numbering: tuple[str, str, str, str]) -> list[Entry]:
    ours, theirs = f"blocks.{number}", f"Transformer/encoderblock_{number}"
    first, attention, second, mlp = (f"{theirs}/{name}" for name in numbering)
    return [
        *flax.norm(f"{ours}.attention.0.norm", first),
        *flax.qkv(
            f"{ours}.attention.0.body.qkv", attention, ("query", "key", "value"), config.heads
        ),
        *flax.out(f"{ours}.attention.0.body.project", attention, config.heads),
        *flax.norm(f"{ours}.mlp.0.norm", second),
        *_mlp(f"{ours}.mlp.0.body", mlp),
    ]


def _mlp(ours: str, theirs: str) -> list[Entry]:
    return [
        *flax.dense(f"{ours}.expand", f"{theirs}/Dense_0"),
        *flax.dense(f"{ours}.contract", f"{theirs}/Dense_1"),
    ]


def _pool(config: ViTConfig) -> list[Entry]:
    ours, theirs = "head.attend", "MAPHead_0"
    attention = f"{theirs}/MultiHeadDotProductAttention_0"
    return [
        same(f"{ours}.queries", f"{theirs}/probe"),
        *flax.qkv(f"{ours}.q", attention, ("query",), config.heads),
        *flax.qkv(f"{ours}.kv", attention, ("key", "value"), config.heads),
        *flax.out(f"{ours}.project", attention, config.heads),
        *flax.norm(f"{ours}.norm", f"{theirs}/LayerNorm_0"),
        *_mlp(f"{ours}.mlp", f"{theirs}/MlpBlock_0"),
    ]
