"""The table of timm's names for our tensors, in the dialects of its families."""

import math
import re
from dataclasses import dataclass
from typing import Self

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.entries import (
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
from vitlab.weights.formats.resnet_units import hybrid_parts
from vitlab.weights.formats.room import cannot
from vitlab.weights.formats.timm.timm_config import NAME
from vitlab.weights.source import Shape

# Names of the papers' own files that differ from timm's.
ALIASES = (
    (r"^blocks\.\d+\.(\d+)\.(?=norm|attn|mlp|ls)", r"blocks.\1."),  # DINOv2's chunks
    (r"^(register_tokens|storage_tokens)$", "reg_token"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w1\.", ".mlp.fc1_g."),
    (r"\.mlp\.w2\.", ".mlp.fc1_x."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"\.gamma_1$", ".ls1.gamma"),
    (r"\.gamma_2$", ".ls2.gamma"),
)
# Two parallel branches in DeiT's own code (norm11, attn1, gamma_1_1, …).
PARALLEL = (
    (r"\.norm11\.", ".attns.1.norm."), (r"\.norm1\.", ".attns.0.norm."),
    (r"\.norm21\.", ".ffns.1.norm."), (r"\.norm2\.", ".ffns.0.norm."),
    (r"\.attn1\.", ".attns.1.attn."), (r"\.attn\.", ".attns.0.attn."),
    (r"\.mlp1\.", ".ffns.1.mlp."), (r"\.mlp\.", ".ffns.0.mlp."),
    (r"\.gamma_1_1$", ".attns.1.ls.gamma"), (r"\.gamma_1$", ".attns.0.ls.gamma"),
    (r"\.gamma_2_1$", ".ffns.1.ls.gamma"), (r"\.gamma_2$", ".ffns.0.ls.gamma"),
)  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """The ways in which families differ.

    Attributes:
        own_row: the class token has a position
        register_rows: the registers have positions
        registers: name of the registers
        split_bias: queries and values have separate biases, keys have none
        masked_bias: the bias of queries, keys and values comes with a mask
        split_gate: a gated MLP's two halves are separate
        scale: name of LayerScale, with {} for the branch: 1 (attention) or 2 (MLP)
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

    @classmethod
    def of_shapes(cls, shapes: dict[str, Shape], own_row: bool, register_rows: bool) -> Self:
        """Return the dialect of a file."""
        first = first_branch(shapes)
        return cls(
            own_row=own_row,
            register_rows=register_rows,
            registers="dist_token" if "dist_token" in shapes else "reg_token",
            split_bias=f"{first}attn.q_bias" in shapes,
            masked_bias=f"{first}attn.qkv.bias_mask" in shapes,
            split_gate=any(name.endswith("mlp.fc1_g.weight") for name in shapes),
            distilled="head_dist.weight" in shapes,
        )

    @classmethod
    def of_config(cls, config: ViTConfig) -> Self:
        """Return the dialect in which timm stores a model."""
        eva = config.positions in ("bias", "rope")  # beit.py and eva.py differ from the others
        return cls(
            register_rows=config.registers > 0 and config.positions == "1d",
            registers="dist_token" if config.pool == "prefix" else "reg_token",
            split_bias=eva and config.qkv_bias,
            split_gate=config.positions == "rope" and config.ffn == "swiglu",
            scale="gamma_{}" if eva else "ls{}.gamma",
            distilled=config.pool == "prefix",
        )


def first_branch(shapes: dict[str, Shape]) -> str:
    """Return the prefix of the first block's first branch."""
    return "blocks.0.attns.0." if "blocks.0.attns.0.norm.weight" in shapes else "blocks.0."


def canonical(names: list[str]) -> dict[str, str]:
    """Return the original names by timm's names."""
    rules = PARALLEL if any(".norm11." in name for name in names) else ALIASES
    renamed: dict[str, str] = {}
    for old in names:
        new = old
        for pattern, word in rules:
            new, count = re.subn(pattern, word, new)
            if count and rules is PARALLEL:
                break  # one word per name
        if new in renamed:
            raise WeightsError(f"tensors {renamed[new]} and {old} have the same meaning")
        renamed[new] = old
    return renamed


def entries(config: ModelConfig, dialect: Dialect) -> list[Entry]:
    """List which tensors of a file make which of a model.

    Raises:
        WeightsError: timm cannot represent the model.
    """
    if not isinstance(config, ViTConfig) or config.attention == "axial" or config.queries > 1:
        raise cannot(NAME, config.name)
    if config.pre_logits:
        raise cannot(NAME, f"pre_logits={config.pre_logits}")
    if config.pool == "both":
        raise cannot(NAME, "pool=both")
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
    raise cannot(
        NAME,
        f"stem={config.stem}",
        f"stem_norm={config.stem_norm}",
        f"stem_act={config.stem_act} together",
    )


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
    names = {"reduce": "{}1", "middle": "{}2", "expand": "{}3", "shortcut": "downsample.{}"}
    for ours, stage, unit, part in hybrid_parts(config.stages):
        theirs = f"{body}.stages.{stage}.blocks.{unit}.{names[part]}"
        table += layer(f"{ours}.conv", theirs.format("conv"), bias=False)
        table += layer(f"{ours}.norm", theirs.format("norm"))
    return table


def _prefix_entries(config: ViTConfig, dialect: Dialect) -> list[Entry]:
    """Class token, registers and positions."""
    table = [same("token", "cls_token")] if config.has_token else []
    if dialect.register_rows:
        if not dialect.own_row and config.has_token:
            raise WeightsError(f"{NAME}: registers with positions, but a class token without")
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
            where = f"positions_at={config.positions_at} together"
            raise cannot(NAME, f"positions={config.positions}", where)
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
