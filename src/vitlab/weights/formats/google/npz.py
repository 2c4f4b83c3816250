"""Google's `.npz` files, in and out: Vision Transformers, hybrids and BiT ResNets."""

from collections.abc import Mapping
from typing import Any

from vitlab.models.config import ModelConfig, ResNetConfig
from vitlab.weights.formats.google import big_transfer, vit_npz
from vitlab.weights.formats.room import Hints, Reading, Writing
from vitlab.weights.source import Source


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize one of Google's files."""
    return vit_npz.reads(source, hints) or big_transfer.reads(source, hints)


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent a model as Google's code reads it.

    Raises:
        WeightsError: Google's files cannot represent it.
    """
    kind = big_transfer if isinstance(config, ResNetConfig) else vit_npz
    return Writing(kind.entries(config), archive="model.npz")
