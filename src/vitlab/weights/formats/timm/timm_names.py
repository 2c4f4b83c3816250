"""The table of timm's names for our tensors, in the dialects of its families."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.entries import (
    Entry,
    computed,
    each,
    halves,
    joined,
    layer,
    same,
    scaled,
)
from vitlab.weights.formats.resnet_units import hybrid_parts
from vitlab.weights.formats.room import cannot
from vitlab.weights.formats.timm.arguments import NAME, Pairs
from vitlab.weights.formats.vit_names import PLAIN, Names, embedding, encoder
from vitlab.weights.source import Shape

# Of most models; of two parallel branches; of beit.py and eva.py.
TIMM = replace(
    PLAIN,
    scales=("ls1.gamma", "ls2.gamma"),
    qk_norms=("attn.q_norm", "attn.k_norm"),
    gated=("mlp.fc1", "mlp.fc2"),
    pre_norm="norm_pre",
    inner_norms=("attn.norm", "mlp.norm"),
    freqs="rope.freqs",
    bias_table="attn.relative_position_bias_table",
    shared_table="rel_pos_bias.relative_position_bias_table",
)
BRANCHED = replace(
    TIMM,
    branches=("attns.{1}.", "ffns.{1}."),
    norms=("norm", "norm"),
    scales=("ls.gamma", "ls.gamma"),
)
EVA = replace(TIMM, scales=("gamma_1", "gamma_2"))
APART = ("attn.q_proj", "attn.k_proj", "attn.v_proj")
NO_KEY_BIAS = (("attn.q_bias", "attn.v_bias"), ("attn.q_proj.bias", "attn.v_proj.bias"))
GATE_APART = ("mlp.fc1_g", "mlp.fc1_x", "mlp.fc2")


def names_in(
    shapes: Mapping[str, Shape],
    own_row: bool,
    register_rows: bool,
    words: Mapping[str, Any],
    pairs: Pairs = "",
) -> Names:
    """Return timm's names of the tensors of a file.

    Args:
        shapes: of its tensors, by timm's names
        own_row: the class token has a position
        register_rows: the registers have positions
        words: of a dialect that differ from timm's
        pairs: how channels that rotary positions turn together lie
    """
    first = first_branch(shapes)
    base = BRANCHED if "attns" in first else TIMM
    registers = "dist_token" if "dist_token" in shapes else base.registers
    names = replace(
        base,
        own_row=own_row,
        register_rows=register_rows,
        registers=registers,
        pool_joined="attn_pool.qkv.weight" in shapes,
        freqs="freqs" if "freqs" in shapes else base.freqs,
        pre_logits="pre_logits.fc" if "pre_logits.fc.weight" in shapes else "",
        pooled_norm="fc_norm" if "fc_norm.weight" in shapes else base.norm,
        qkv=APART if f"{first}attn.q_proj.weight" in shapes else base.qkv,
        biases=next((two for two in NO_KEY_BIAS if _keyless(shapes, first, two)), ()),
        pairs=pairs,
        mask="attn.qkv.bias_mask" if f"{first}attn.qkv.bias_mask" in shapes else "",
        gated=GATE_APART if f"{first}mlp.fc1_g.weight" in shapes else base.gated,
    )
    return replace(names, **words)


def names_for(config: ViTConfig) -> Names:
    """Return the names under which timm stores a model."""
    biased, turned = "bias" in config.positions, "rope" in config.positions
    eva = biased or turned  # beit.py and eva.py
    base = EVA if eva else BRANCHED if config.branches > 1 else TIMM
    return replace(
        base,
        register_rows=config.registers > 0 and "1d" in config.positions,
        registers="dist_token" if config.pool == "prefix" else base.registers,
        biases=NO_KEY_BIAS[0] if biased else (),
        gated=GATE_APART if eva else base.gated,
        pairs="ij" if turned and config.rope_kind == "mixed" else "",
    )


def _keyless(shapes: Mapping[str, Shape], first: str, biases: tuple[str, ...]) -> bool:
    """Whether a file has these biases of queries and values, and none of keys."""
    return first + biases[0] in shapes and f"{first}attn.k_proj.bias" not in shapes


def first_branch(shapes: Mapping[str, Shape]) -> str:
    """Return the prefix of the first block's first branch."""
    return "blocks.0.attns.0." if "blocks.0.attns.0.norm.weight" in shapes else "blocks.0."


def entries(config: ModelConfig, names: Names) -> list[Entry]:
    """List which tensors of a file make which of a model.

    Raises:
        WeightsError: timm cannot represent the model.
    """
    if not isinstance(config, ViTConfig) or config.attention == "axial" or config.queries > 1:
        raise cannot(NAME, config.name)
    if config.pre_logits and not names.pre_logits:
        raise cannot(NAME, f"pre_logits={config.pre_logits}")
    table = [*_stem(config, names), *embedding(config, names, NAME), *encoder(config, names)]
    if config.norm_at != "none":
        pooled = config.norm_at == "pooled"
        ours, theirs = ("head.norm", names.pooled_norm) if pooled else ("norm", names.norm)
        unscaled = [computed(f"{ours}.weight", lambda: torch.ones(config.width))]
        table += scaled(ours, theirs, config) if theirs else unscaled
    if config.pool == "attention":
        table += _attention_pool(config, names)
    if config.pre_logits:
        table += layer("head.pre_logits", names.pre_logits)
    zero = computed("head.classify.bias", lambda: torch.zeros(config.classes))
    if config.classes and names.projection:
        table += [each("head.classify.weight", names.projection, torch.t, torch.t), zero]
    elif config.classes and config.pool == "prefix":
        for part in ("weight", "bias"):
            table.append(halves(f"head.classify.{part}", (f"head.{part}", f"head_dist.{part}")))
    elif config.classes:
        table += layer("head.classify", "head", names.head_bias)
        table += [] if names.head_bias else [zero]
    return table


def _stem(config: ViTConfig, names: Names) -> list[Entry]:
    if names.channels_last:
        return _flattened(config)
    match config.stem:
        case "linear" if config.stem_norm != "batch" and config.stem_act == "none":
            table = layer("stem.layers.0", "patch_embed.proj", config.stem_bias)
            normed = scaled("stem.layers.1", "patch_embed.norm", config)
            return table + (normed if config.stem_norm == "layer" else [])
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


def _flattened(config: ViTConfig) -> list[Entry]:
    """A linear map of patches whose numbers are in the order rows, columns, channels."""
    ours, theirs = "stem.layers.0", "patch_embed.proj"
    square = (config.patch, config.patch, config.channels)
    kernel = each(
        f"{ours}.weight",
        f"{theirs}.weight",
        lambda t: t.unflatten(1, square).permute(0, 3, 1, 2),
        lambda t: t.permute(0, 2, 3, 1).flatten(1),
    )
    return [kernel, same(f"{ours}.bias", f"{theirs}.bias")]


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


def _attention_pool(config: ViTConfig, names: Names) -> list[Entry]:
    ours, theirs = "head.attend", "attn_pool"
    table = [
        same(f"{ours}.queries", f"{theirs}.latent"),
        *layer(f"{ours}.project", f"{theirs}.proj"),
    ]
    for part in ("weight", "bias"):
        both = (f"{ours}.q.{part}", f"{ours}.kv.{part}")
        if names.pool_joined:
            table.append(joined(both, f"{theirs}.qkv.{part}", (config.width, 2 * config.width)))
        else:
            table += [same(own, own.replace(ours, theirs)) for own in both]
    table += scaled(f"{ours}.norm", f"{theirs}.norm", config)
    table += layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
    return [*table, *layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")]
