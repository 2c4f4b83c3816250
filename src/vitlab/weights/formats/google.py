"""Google's `.npz`: ViT, AugReg, hybrids (vision_transformer), and big_vision's in the same words.

Kernels are (inputs, outputs), those of attention (width, heads, head width), those of convolutions
(rows, columns, inputs, outputs). Sub-modules of a block are numbered through in the older files and
by kind in the newer ones; big_vision adds positions to patches only, and keeps them elsewhere.
GELU is the tanh approximation, epsilon 1e-6, positions are resized bilinearly with aligned corners,
images are in [-1, 1] (REFERENCE: models_vit.py, checkpoint.py; big_vision's models/vit.py).
"""

import math
import re
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ViTConfig, map_stride
from vitlab.weights.entries import Entry, computed, each, same, without_first_row
from vitlab.weights.reading import Hints, Reading
from vitlab.weights.source import Source, units_of

NAME = "Google's ViT (.npz)"
OLD = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
NEW = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
PLACES = (
    "Transformer/posembed_input/pos_embedding",
    "Transformer/pos_embedding",
    "pos_embedding",
)
PREFIXES = ("", "params/", "opt/target/", "opt/target/params/", "params/img/", "img/")


def reading(source: Source, hints: Hints) -> Reading | None:
    """What such a file says, or None for another format."""
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in source.shapes), None)
    if source.kind != "npz" or prefix is None:
        return None
    names = {key.removeprefix(prefix) for key in source.shapes if key.startswith(prefix)}
    shapes = {name: source.shapes[prefix + name] for name in names}
    config, table = _config(shapes, hints)
    wanted = [entry.renamed(lambda name: _stored(prefix, name, shapes)) for entry in table]
    others = f"(?!{re.escape(prefix)}).*" if prefix else "opt/state/.*"
    return Reading(NAME, config, wanted, {others: "not of the image model"})


def _stored(prefix: str, name: str, shapes: dict[str, tuple[int, ...]]) -> str:
    """Where a tensor lies: models made by a scan have all their blocks in one array."""
    if found := re.fullmatch(r"Transformer/encoderblock_(\d+)/(.*)", name):
        stacked = f"Transformer/encoderblock/{found[2]}"
        if stacked in shapes:
            return f"{prefix}{stacked}[{found[1]}]"
    return prefix + name


def _config(shapes: dict[str, tuple[int, ...]], hints: Hints) -> tuple[ViTConfig, list[Entry]]:
    """The model of a file's shapes, and the table for it in the file's dialect."""
    blocks = [n for n in shapes if re.match(r"Transformer/encoderblock", n)]
    stacked = any(n.startswith("Transformer/encoderblock/") for n in blocks)
    queries = sorted(n for n in blocks if n.endswith("/query/kernel"))
    if not queries or len(shapes[queries[0]]) != 3 + stacked:
        raise UserError(f"{NAME}: no attention kernels of shape (width, heads, head width)")
    query = queries[0]
    width, heads, _ = shapes[query][stacked:]
    depth = shapes[query][0] if stacked else len(queries)
    numbering = OLD if OLD[1] in query else NEW
    dense = next((n for n in blocks if n.endswith(f"{numbering[3]}/Dense_0/kernel")), "")
    if not dense or len(shapes["embedding/kernel"]) != 4:
        raise UserError(f"{NAME}: no MLP or patch kernels of the usual shape")
    side, _, channels, _ = shapes["embedding/kernel"]
    stages = _stages(shapes)
    fields: dict[str, Any] = {
        "width": width, "depth": depth, "heads": heads, "mlp": shapes[dense][-1],
        "classes": shapes["head/bias"][0] if "head/bias" in shapes else 0,
        "pre_logits": shapes["pre_logits/bias"][0] if "pre_logits/bias" in shapes else 0,
        "patch": side, "channels": channels, "gelu": "tanh", "fit": "squash",
    }  # fmt: skip
    if stages is not None:
        channels = shapes["conv_root/kernel"][2]
        fields |= {
            "stem": "resnet",
            "stages": stages,
            "patch": side * map_stride(stages),
            "channels": channels,
        }
    place = next((name for name in PLACES if name in shapes), "")
    pooled = any(name.startswith("MAPHead_0/") for name in shapes)
    fields["pool"] = "attention" if pooled else "token" if "cls" in shapes else "mean"
    patches, own_row = _patches(shapes.get(place, (0,)), "cls" in shapes, fields, hints)
    fields["image_size"] = tuple(n * int(fields["patch"]) for n in patches)
    config = ViTConfig(**(fields | hints.choices))
    return config, entries(config, numbering, place, own_row)


def _stages(shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Units of each stage of a hybrid's ResNet; None where there is none."""
    if "conv_root/kernel" not in shapes:
        return None
    return units_of(shapes, r"block(\d+)/unit(\d+)/")


def _patches(
    table: tuple[int, ...], token: bool, fields: dict[str, object], hints: Hints
) -> tuple[tuple[int, int], bool]:
    """Rows and columns of patches, and whether the class token has a position."""
    patch, stored = int(str(fields["patch"])), table[1] if len(table) == 3 else None
    told = hints.choices.get("image_size")
    for size in (told, None, hints.image_size or 224):  # what it had, a square, what it shall have
        rows, columns = (size, size) if isinstance(size, int) else tuple(size or (0, 0))
        grid = (rows // patch, columns // patch)
        for own_row in (token, False):
            count = math.prod(grid) if stored is None else stored - own_row
            side = math.isqrt(count)
            if size is None and stored is not None and side**2 == count:
                return (side, side), bool(own_row)
            if size is not None and math.prod(grid) == count:
                return grid, bool(own_row) and stored is not None
    raise UserError(
        f"{NAME}: {table[1]} positions are no square: give image_size=(rows, columns) in pixels"
    )


def entries(
    config: ModelConfig,
    numbering: tuple[str, str, str, str] = OLD,
    place: str = PLACES[0],
    own_row: bool = True,
) -> list[Entry]:
    """The table for a configuration.

    Args:
        config: of the model
        numbering: how the sub-modules of a block are called
        place: where the positions are; empty for big_vision's fixed ones, which are not stored
        own_row: the class token has a position of its own
    """
    if not isinstance(config, ViTConfig) or config.branches > 1 or config.attention == "axial":
        raise UserError(f"{NAME} has no place for {config.name}")
    table = [*_stem(config), *_positions(config, place, own_row)]
    for number in range(config.depth):
        table += _block(config, number, numbering)
    table += _norm("norm", "Transformer/encoder_norm")
    if config.pool == "attention":
        table += _pool(config)
    if config.pre_logits:
        table += _dense("head.pre_logits", "pre_logits")
    if config.classes:
        table += _dense("head.classify", "head")
    return table


def _stem(config: ViTConfig) -> list[Entry]:
    if config.stem == "linear":
        return _conv("stem.layers.0", "embedding", bias=True)
    table = _conv("stem.project", "embedding", bias=True)
    table += _conv("stem.body.root.reduce.conv", "conv_root", bias=False)
    table += _norm("stem.body.root.reduce.norm", "gn_root")
    parts = {"reduce": "1", "middle": "2", "expand": "3", "shortcut": "_proj"}
    for stage, units in enumerate(config.stages):
        for unit in range(units):
            for part, end in parts.items():
                if part == "shortcut" and unit:
                    continue
                ours, theirs = (
                    f"stem.body.stages.{stage}.{unit}.{part}",
                    f"block{stage + 1}/unit{unit + 1}",
                )
                table += _conv(f"{ours}.conv", f"{theirs}/conv{end}", bias=False)
                table += _norm(f"{ours}.norm", f"{theirs}/gn{end}")
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
        *_norm(f"{ours}.attention.0.norm", first),
        *_qkv(f"{ours}.attention.0.body.qkv", attention, ("query", "key", "value"), config.heads),
        *_out(f"{ours}.attention.0.body.project", attention, config.heads),
        *_norm(f"{ours}.mlp.0.norm", second),
        *_mlp(f"{ours}.mlp.0.body", mlp),
    ]


def _mlp(ours: str, theirs: str) -> list[Entry]:
    return [
        *_dense(f"{ours}.expand", f"{theirs}/Dense_0"),
        *_dense(f"{ours}.contract", f"{theirs}/Dense_1"),
    ]


def _pool(config: ViTConfig) -> list[Entry]:
    ours, theirs = "head.attend", "MAPHead_0"
    attention = f"{theirs}/MultiHeadDotProductAttention_0"
    return [
        same(f"{ours}.queries", f"{theirs}/probe"),
        *_qkv(f"{ours}.q", attention, ("query",), config.heads),
        *_qkv(f"{ours}.kv", attention, ("key", "value"), config.heads),
        *_out(f"{ours}.project", attention, config.heads),
        *_norm(f"{ours}.norm", f"{theirs}/LayerNorm_0"),
        *_mlp(f"{ours}.mlp", f"{theirs}/MlpBlock_0"),
    ]


def _norm(ours: str, theirs: str) -> list[Entry]:
    return [same(f"{ours}.weight", f"{theirs}/scale"), same(f"{ours}.bias", f"{theirs}/bias")]


def _dense(ours: str, theirs: str) -> list[Entry]:
    kernel = each(f"{ours}.weight", f"{theirs}/kernel", lambda t: t.T, lambda t: t.T)
    return [kernel, same(f"{ours}.bias", f"{theirs}/bias")]


def _conv(ours: str, theirs: str, bias: bool) -> list[Entry]:
    def read(kernel: Tensor) -> Tensor:
        return kernel.permute(3, 2, 0, 1)

    def write(weight: Tensor) -> Tensor:
        return weight.permute(2, 3, 1, 0)

    table = [each(f"{ours}.weight", f"{theirs}/kernel", read, write)]
    return [*table, same(f"{ours}.bias", f"{theirs}/bias")] if bias else table


def _qkv(ours: str, theirs: str, parts: tuple[str, ...], heads: int) -> list[Entry]:
    """Kernels (D, h, d) and biases (h, d) of each, on top of each other."""

    def read(kernels: list[Tensor]) -> list[Tensor]:
        return [torch.cat([kernel.flatten(1).T for kernel in kernels])]

    def write(weights: list[Tensor]) -> list[Tensor]:
        return [part.T.unflatten(1, (heads, -1)) for part in weights[0].chunk(len(parts))]

    def read_bias(biases: list[Tensor]) -> list[Tensor]:
        return [torch.cat([bias.flatten() for bias in biases])]

    def write_bias(biases: list[Tensor]) -> list[Tensor]:
        return [part.unflatten(0, (heads, -1)) for part in biases[0].chunk(len(parts))]

    kernels = tuple(f"{theirs}/{part}/kernel" for part in parts)
    biases = tuple(f"{theirs}/{part}/bias" for part in parts)
    return [
        Entry((f"{ours}.weight",), kernels, read, write),
        Entry((f"{ours}.bias",), biases, read_bias, write_bias),
    ]


def _out(ours: str, theirs: str, heads: int) -> list[Entry]:
    def read(kernel: Tensor) -> Tensor:
        return kernel.flatten(0, 1).T

    def write(weight: Tensor) -> Tensor:
        return weight.T.unflatten(0, (heads, -1))

    return [
        each(f"{ours}.weight", f"{theirs}/out/kernel", read, write),
        same(f"{ours}.bias", f"{theirs}/out/bias"),
    ]
