"""The tensors of transformers' families by our names."""

from dataclasses import replace

import torch

from vitlab.models.config import ViTConfig
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
from vitlab.weights.formats.room import cannot
from vitlab.weights.formats.transformers.family import Family, Stated
from vitlab.weights.formats.vit_names import embedding, encoder

NAME = "transformers"


def entries(config: ViTConfig, family: Family, stated: Stated | None = None) -> list[Entry]:
    """List which tensors of a family make which of a model; `/name` is outside the backbone.

    Args:
        config: of the model
        family: whose names the tensors have
        stated: of a file, whose dialect is followed; None for what is written today

    Raises:
        WeightsError: transformers cannot represent the model.
    """
    if config.branches > 1 or config.stem != "linear" or config.attention == "axial":
        raise cannot(NAME, config.name)
    if config.ffn == "swiglu" and not family.gated:
        raise cannot(NAME, f"ffn=swiglu in {family.model_type}")
    if stated is not None and family.key_bias and not stated.content[family.key_bias]:
        family = replace(family, biases=(f"{family.qkv[0]}.bias", f"{family.qkv[2]}.bias"))
    table = _stem(config, family)
    table += [*embedding(config, family, NAME), *encoder(config, family)]
    table += _norm(config, family, stated)
    if config.pre_logits:
        table += layer("head.pre_logits", "pooler.dense")
    if config.pool == "attention":
        table += _attention_pool(config.width)
    return table + _head(config, family, stated)


def _stem(config: ViTConfig, family: Family) -> list[Entry]:
    ours, theirs = "stem.layers.0", family.patch
    if not family.dense_patch:
        table = layer(ours, theirs, config.stem_bias)
        normed = config.stem_norm == "layer" and bool(family.stem_norm)
        return table + (scaled("stem.layers.1", family.stem_norm, config) if normed else [])
    side, width = config.patch, config.width
    kernel = each(
        f"{ours}.weight",
        f"{theirs}.weight",
        lambda t: t.reshape(width, side, side, -1).permute(0, 3, 1, 2),
        lambda t: t.permute(0, 2, 3, 1).reshape(width, -1),
    )
    return [kernel, same(f"{ours}.bias", f"{theirs}.bias")]


def _norm(config: ViTConfig, family: Family, stated: Stated | None) -> list[Entry]:
    """The last norm: BEiT's on all tokens is the backbone's, or outside of it in older files."""
    if config.norm_at == "none":
        return []
    if config.norm_at == "pooled":
        return layer("head.norm", family.norm)
    if not family.norm.startswith("pooler."):
        return scaled("norm", family.norm, config)
    outside = stated is not None and "layernorm.weight" not in stated.shapes
    return layer("norm", "/layernorm" if outside else "layernorm")


def _head(config: ViTConfig, family: Family, stated: Stated | None) -> list[Entry]:
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
    if family.pre_norm and (stated is None or not stated.classifies):
        zero = computed("head.classify.bias", lambda: torch.zeros(config.classes))
        return [same("head.classify.weight", "/visual_projection.weight"), zero]
    return layer("head.classify", "/classifier")


def _attention_pool(width: int) -> list[Entry]:
    """SigLIP's pool: PyTorch's attention module, whose three projections are one tensor."""
    ours, table = "head.attend", [same("head.attend.queries", "head.probe")]
    for part in ("weight", "bias"):
        both = (f"{ours}.q.{part}", f"{ours}.kv.{part}")
        table.append(joined(both, f"head.attention.in_proj_{part}", (width, 2 * width)))
    table += layer(f"{ours}.project", "head.attention.out_proj")
    table += layer(f"{ours}.norm", "head.layernorm")
    table += layer(f"{ours}.mlp.expand", "head.mlp.fc1")
    return table + layer(f"{ours}.mlp.contract", "head.mlp.fc2")
