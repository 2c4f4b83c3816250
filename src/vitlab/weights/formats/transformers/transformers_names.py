"""The tensors of transformers' families by our names."""

import torch

from vitlab.models.config import ViTConfig
from vitlab.weights.formats.entries import (
    Entry,
    computed,
    halves,
    layer,
    same,
    shaped,
    stacked,
    with_prefix_rows,
    without_key,
)
from vitlab.weights.formats.room import cannot
from vitlab.weights.formats.transformers.families import FAMILIES, Family, Shapes

NAME = "transformers"


def entries(config: ViTConfig, model_type: str, shapes: Shapes | None = None) -> list[Entry]:
    """List which tensors of a family make which of a model; `/name` is outside the backbone.

    Args:
        config: of the model
        model_type: the family's
        shapes: of a file, whose dialect is followed; None for what is written today

    Raises:
        WeightsError: transformers cannot represent the model.
    """
    if config.branches > 1 or config.stem != "linear":
        raise cannot(NAME, config.name)
    family = FAMILIES[model_type]
    table = layer("stem.layers.0", family.patch, config.stem_bias)
    table += _embedding(config, family)
    if config.pre_norm:
        table += layer("pre_norm", "pre_layrnorm")  # their spelling
    for number in range(config.depth):
        table += _block(config, family, number)
    table += _norm(config, family, shapes)
    if config.pre_logits:
        table += layer("head.pre_logits", "pooler.dense")
    if config.pool == "attention":
        table += _attention_pool()
    return table + _head(config, family)


def _norm(config: ViTConfig, family: Family, shapes: Shapes | None) -> list[Entry]:
    """The last norm: BEiT's on all tokens is the backbone's, or outside of it in older files."""
    if config.norm_at == "pooled":
        return layer("head.norm", family.norm)
    if family is not FAMILIES["beit"]:
        return layer("norm", family.norm)
    outside = shapes is not None and "layernorm.weight" not in shapes
    return layer("norm", "/layernorm" if outside else "layernorm")


def _head(config: ViTConfig, family: Family) -> list[Entry]:
    if not config.classes:
        return []
    if config.pool == "prefix":
        return [
            halves(
                f"head.classify.{part}",
                (f"/cls_classifier.{part}", f"/distillation_classifier.{part}"),
            )
            for part in ("weight", "bias")
        ]
    if family is FAMILIES["clip_vision_model"]:
        zero = computed("head.classify.bias", lambda: torch.zeros(config.classes))
        return [same("head.classify.weight", "/visual_projection.weight"), zero]
    return layer("head.classify", "/classifier")


def _embedding(config: ViTConfig, family: Family) -> list[Entry]:
    """Class token, registers and positions; CLIP's are (D) and (N, D)."""
    width, flat = config.width, family.positions.endswith(".weight")
    table: list[Entry] = []
    if config.has_token and flat:
        table.append(shaped("token", family.token, (1, 1, width), (width,)))
    elif config.has_token:
        table.append(same("token", family.token))
    if family is FAMILIES["deit"]:
        both = (family.registers, family.positions)
        return [*table, with_prefix_rows(config.has_token, config.registers, both)]
    if config.registers:
        table.append(same("registers", family.registers))
    bias_table = "relative_position_bias.relative_position_bias_table"
    match config.positions, config.positions_at:
        case "1d", "stem" if flat:
            places = (config.placed, width)
            table.append(shaped("positions.0.table", family.positions, (1, *places), places))
        case "1d", "stem":
            table.append(same("positions.0.table", family.positions))
        case "bias", "shared":
            table.append(same("positions.0.table", f"encoder.{bias_table}"))
        case "bias", "stem":
            for number in range(config.depth):
                name = f"{family.block.format(number)}.attention.attention.{bias_table}"
                table.append(same(f"positions.{number}.table", name))
        case (("none" | "rope"), _):
            pass
        case _:
            where = f"positions_at={config.positions_at} together"
            raise cannot(NAME, f"positions={config.positions}", where)
    return table


def _block(config: ViTConfig, family: Family, number: int) -> list[Entry]:
    ours, theirs = f"blocks.{number}", family.block.format(number)
    parts = (f"{ours}.attention.0", f"{ours}.mlp.0")
    table: list[Entry] = []
    for part, norm, scale in zip(parts, family.norms, family.scales, strict=True):
        table += layer(f"{part}.norm", f"{theirs}.{norm}")
        if config.layer_scale:
            table.append(same(f"{part}.scale", f"{theirs}.{scale}"))
    q, k, v = (f"{theirs}.{name}" for name in family.qkv)
    qkv = f"{parts[0]}.body.qkv"
    table.append(stacked(f"{qkv}.weight", [f"{n}.weight" for n in (q, k, v)]))
    if config.qkv_bias and family.key_bias:
        table.append(stacked(f"{qkv}.bias", [f"{n}.bias" for n in (q, k, v)]))
    elif config.qkv_bias:
        table.append(without_key(f"{qkv}.bias", f"{q}.bias", f"{v}.bias"))
    table += layer(f"{parts[0]}.body.project", f"{theirs}.{family.project}", config.bias)
    layers = family.gated if config.ffn == "swiglu" else family.mlp
    if not layers:
        raise cannot(NAME, f"ffn={config.ffn} in this model")
    *first, last = (f"{theirs}.{name}" for name in layers)
    body = f"{parts[1]}.body"
    for kind in ("weight", "bias") if config.bias else ("weight",):
        table.append(stacked(f"{body}.expand.{kind}", [f"{name}.{kind}" for name in first]))
    return table + layer(f"{body}.contract", last, config.bias)


def _attention_pool() -> list[Entry]:
    """SigLIP's pool: PyTorch's attention module, whose three projections are one tensor."""
    ours, table = "head.attend", [same("head.attend.queries", "head.probe")]
    for part in ("weight", "bias"):
        table.append(
            Entry(
                (f"{ours}.q.{part}", f"{ours}.kv.{part}"),
                (f"head.attention.in_proj_{part}",),
                lambda t: list(t[0].split([len(t[0]) // 3, 2 * len(t[0]) // 3])),
                lambda t: [torch.cat(t)],
            )
        )
    table += layer(f"{ours}.project", "head.attention.out_proj")
    table += layer(f"{ours}.norm", "head.layernorm")
    table += layer(f"{ours}.mlp.expand", "head.mlp.fc1")
    return table + layer(f"{ours}.mlp.contract", "head.mlp.fc2")
