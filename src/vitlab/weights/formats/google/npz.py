"""Google's `.npz` files, in and out: Vision Transformers, hybrids and BiT ResNets."""

from collections.abc import Mapping
from typing import Any

from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.weights.formats.google import big_transfer, vit_npz
from vitlab.weights.formats.room import Hints, Reading, Writing, check_fields
from vitlab.weights.source import Source

# Of a Vision Transformer, the values that Google's code has; any other field may have any value.
REPRESENTED: dict[str, tuple[Any, ...]] = {
    "branches": (1,), "attention": ("global",), "stem": ("linear", "resnet"),
    "resnet": ("google",), "stem_norm": ("none",), "stem_act": ("none",), "stem_bias": (True,),
    "positions": ("1d",), "positions_at": ("stem",), "pre_norm": (False,),
    "pool": ("token", "mean", "attention"), "norm": ("layer",), "norm_at": ("tokens",),
    "norm_order": ("before",), "norm_inner_attention": (False,), "norm_inner_mlp": (False,),
    "queries": (1,), "pool_heads": (0,), "pool_mlp": (0,), "pool_prefix": (False,),
    "registers": (0,), "layer_scale": (0.0,), "qkv_bias": (True,), "bias": (True,),
    "qk_norm": (False,), "ffn": ("mlp",), "gelu": ("tanh",), "norm_eps": (1e-6,),
}  # fmt: skip


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize one of Google's files."""
    return vit_npz.reads(source, hints) or big_transfer.reads(source, hints)


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent a model as Google's code reads it.

    Raises:
        WeightsError: Google's files cannot represent it.
    """
    kind = big_transfer if isinstance(config, ResNetConfig) else vit_npz
    if isinstance(config, ViTConfig):
        check_fields("google", config, REPRESENTED)
    stored = config.settled
    return Writing(kind.entries(stored), archive="model.npz", stored=stored)
