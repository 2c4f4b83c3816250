"""Every architectural choice of a model as one frozen value, and which one a name stands for."""

from typing import Any

from vitlab.models.configs.model_config import ModelConfig, map_features, map_stride
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.grid import Grid
from vitlab.models.names import RESNET_NAME, TOKENIZER_NAME, shape_of
from vitlab.models.registry import kind_named, used_options
from vitlab.options import check_known, hints

__all__ = [
    "Grid",
    "ModelConfig",
    "ResNetConfig",
    "TokenizerConfig",
    "ViTConfig",
    "config_of",
    "kind_of",
    "map_features",
    "map_stride",
]


def config_of(name: str, **choices: Any) -> ModelConfig:
    """Return the configuration that a name stands for, with any further fields of it.

    A stem that is chosen without `stem_norm` has the norm of its paper.

    Args:
        name: the papers' notation, `ViT-B/16`; see `vitlab.models.names.shape_of`
        choices: fields of `ViTConfig`; for a ResNet's name of `ResNetConfig`, for a tokenizer's of
            `TokenizerConfig`

    Raises:
        OptionError: an unknown name or field, or values that are not possible.
    """
    shape, kind = shape_of(name), kind_of(name)
    values = shape | choices
    check_known(values, hints(kind), f"{name} option")
    stem = str(choices.get("stem"))
    if stem in used_options("stem"):
        values.setdefault("stem_norm", kind_named("stem", stem).usual_norm)
    return kind(**values)


def kind_of(name: str) -> type[ModelConfig]:
    """Return the configuration class that a name is for."""
    if TOKENIZER_NAME.fullmatch(name):
        return TokenizerConfig
    return ResNetConfig if RESNET_NAME.fullmatch(name) else ViTConfig
