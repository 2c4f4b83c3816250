"""The table of timm's names for our tensors, in the dialects of its families."""

import math
from dataclasses import dataclass

from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.entries import (
    Entry,
    halves,
    layer,
    masked,
    same,
    stacked,
    with_prefix_rows,
    without_first_row,
    without_key,
)

NAME = "timm"


@dataclass(frozen=True)
class Dialect:
    """How one family writes what others write otherwise.

    Attributes:
        own_row: the class token has a position
        register_rows: the registers have positions
        registers: what they are called
        split_bias: queries and values have biases apart, keys have none
        masked_bias: the bias of queries, keys and values comes with a mask
        split_gate: a gated MLP's two halves are apart
        scale: how LayerScale is called, the kind of branch as a number
        distilled: two classifiers are averaged
    """

    own_row: bool = True
    register_rows: bool = False
    registers: str = "reg_token"
    split_bias: bool = False
    masked_bias: bool = False
    split_gate: bool = False
    scale: str = "ls{}.gamma"
    distilled: bool = False


def entries(config: ModelConfig, dialect: Dialect) -> list[Entry]:
    """The table for a configuration in a dialect.

    Raises:
        ValueError: timm has no place for such a model.
    """
    if not isinstance(config, ViTConfig) or config.attention == "axial" or config.queries > 1:
        raise UserError(f"{NAME} has no place for {config.name}")
    if config.pre_logits or config.pool == "both":
        raise UserError(f"{NAME} has no place for pre_logits or pool=both")
    table = [*_stem_entries(config), *_prefix_entries(config, dialect)]
    table += layer("pre_norm", "norm_pre") if config.pre_norm else []
    for number in range(config.depth):
        table += _block(config, number, dialect)
    if config.norm_at == "tokens":
        table += layer("norm", "norm")
    if config.norm_at == "pooled":
        table += layer("head.norm", "fc_norm")
    if config.pool == "attention":
        table += _pool()
    if config.classes and dialect.distilled:
        for part in ("weight", "bias"):
            names = (f"head.{part}", f"head_dist.{part}")
            table.append(halves(f"head.classify.{part}", names))
    elif config.classes:
        table += layer("head.classify", "head")
    return table


def _stem_entries(config: ViTConfig) -> list[Entry]:
    match config.stem:
        case "linear" if config.stem_norm == "none" and config.stem_act == "none":
            return layer("stem.layers.0", "patch_embed.proj", config.stem_bias)
        case "hmlp" if config.stem_norm != "layer":
            return _hmlp(config)
        case "resnet":
            return _hybrid(config)
    raise UserError(f"{NAME} has no place for stem={config.stem} as it is here")


def _hmlp(config: ViTConfig) -> list[Entry]:
    """DeiT's code: the same sequence of layers."""
    steps = int(math.log2(config.patch)) - 1
    stride = 3 if config.stem_norm == "batch" else 2
    table: list[Entry] = []
    for step in range(steps):
        table += layer(f"stem.layers.{stride * step}", f"patch_embed.proj.{stride * step}")
        if config.stem_norm == "batch":
            place = f"{stride * step + 1}"
            table += layer(f"stem.layers.{place}", f"patch_embed.proj.{place}")
            for part in ("running_mean", "running_var", "num_batches_tracked"):
                table.append(
                    same(f"stem.layers.{place}.{part}", f"patch_embed.proj.{place}.{part}")
                )
    return table


def _hybrid(config: ViTConfig) -> list[Entry]:
    body = "patch_embed.backbone"
    root = f"{body}.stem" if config.stages else body
    table = layer("stem.project", "patch_embed.proj")
    table += layer("stem.body.root.reduce.conv", f"{root}.conv", bias=False)
    table += layer("stem.body.root.reduce.norm", f"{root}.norm")
    parts = {"reduce": "{}1", "middle": "{}2", "expand": "{}3", "shortcut": "downsample.{}"}
    for stage, units in enumerate(config.stages):
        for unit in range(units):
            ours, theirs = (
                f"stem.body.stages.{stage}.{unit}",
                f"{body}.stages.{stage}.blocks.{unit}",
            )
            for part, name in parts.items():
                if part != "shortcut" or unit == 0:
                    conv, norm = name.format("conv"), name.format("norm")
                    table += layer(f"{ours}.{part}.conv", f"{theirs}.{conv}", bias=False)
                    table += layer(f"{ours}.{part}.norm", f"{theirs}.{norm}")
    return table


def _prefix_entries(config: ViTConfig, dialect: Dialect) -> list[Entry]:
    """Class token, registers and positions."""
    table = [same("token", "cls_token")] if config.has_token else []
    if dialect.register_rows:
        if not dialect.own_row and config.has_token:
            raise UserError(f"{NAME}: registers with positions, a class token without")
        return [
            *table,
            with_prefix_rows(config.has_token, config.registers, (dialect.registers, "pos_embed")),
        ]
    if config.registers:
        table.append(same("registers", dialect.registers))
    match config.positions, config.positions_at:
        case "1d", "stem" if config.has_token and not dialect.own_row:
            table.append(without_first_row("positions.0.table", "pos_embed"))
        case "1d", "stem":
            table.append(same("positions.0.table", "pos_embed"))
        case "bias", "shared":
            table.append(same("positions.0.table", "rel_pos_bias.relative_position_bias_table"))
        case "bias", "stem":
            for number in range(config.depth):
                name = f"blocks.{number}.attn.relative_position_bias_table"
                table.append(same(f"positions.{number}.table", name))
        case (("none" | "rope"), _):
            pass
        case _:
            raise UserError(
                f"{NAME} has no place for positions={config.positions} as they are here"
            )
    return table


def _block(config: ViTConfig, number: int, dialect: Dialect) -> list[Entry]:
    table: list[Entry] = []
    for branch in range(config.branches):
        attention, mlp = (f"blocks.{number}.{kind}.{branch}" for kind in ("attention", "mlp"))
        if config.branches > 1:
            sides = [f"blocks.{number}.{kind}.{branch}" for kind in ("attns", "ffns")]
            norms, scales = [f"{s}.norm" for s in sides], [f"{s}.ls.gamma" for s in sides]
        else:
            sides = [f"blocks.{number}"] * 2
            norms = [f"blocks.{number}.norm{n}" for n in (1, 2)]
            scales = [f"blocks.{number}.{dialect.scale.format(n)}" for n in (1, 2)]
        for ours, norm, scale in zip((attention, mlp), norms, scales, strict=True):
            table += layer(f"{ours}.norm", norm)
            table += [same(f"{ours}.scale", scale)] if config.layer_scale else []
        table += _attention(config, f"{attention}.body", f"{sides[0]}.attn", dialect)
        table += _mlp(config, f"{mlp}.body", f"{sides[1]}.mlp", dialect)
    return table


def _attention(config: ViTConfig, ours: str, theirs: str, dialect: Dialect) -> list[Entry]:
    table = [same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight")]
    if dialect.split_bias and config.qkv_bias:
        table.append(without_key(f"{ours}.qkv.bias", f"{theirs}.q_bias", f"{theirs}.v_bias"))
    elif dialect.masked_bias:
        names = (f"{theirs}.qkv.bias", f"{theirs}.qkv.bias_mask")
        table.append(masked(f"{ours}.qkv.bias", names))
    elif config.qkv_bias:
        table.append(same(f"{ours}.qkv.bias", f"{theirs}.qkv.bias"))
    if config.qk_norm:
        table += layer(f"{ours}.norms.q", f"{theirs}.q_norm")
        table += layer(f"{ours}.norms.k", f"{theirs}.k_norm")
    return [*table, *layer(f"{ours}.project", f"{theirs}.proj", config.bias)]


def _mlp(config: ViTConfig, ours: str, theirs: str, dialect: Dialect) -> list[Entry]:
    parts = ("weight", "bias") if config.bias else ("weight",)
    table = layer(f"{ours}.contract", f"{theirs}.fc2", config.bias)
    if dialect.split_gate:
        for part in parts:
            names = (f"{theirs}.fc1_g.{part}", f"{theirs}.fc1_x.{part}")
            table.append(stacked(f"{ours}.expand.{part}", names))
        return table
    return [*table, *layer(f"{ours}.expand", f"{theirs}.fc1", config.bias)]


def _pool() -> list[Entry]:
    ours, theirs = "head.attend", "attn_pool"
    table = [same(f"{ours}.queries", f"{theirs}.latent")]
    for part, name in (("q", "q"), ("kv", "kv"), ("project", "proj"), ("norm", "norm")):
        table += layer(f"{ours}.{part}", f"{theirs}.{name}")
    table += layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
    return [*table, *layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")]
