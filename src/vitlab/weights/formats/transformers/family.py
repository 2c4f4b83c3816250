"""What one family of transformers is: its names, its config.json, how it is used."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitlab.models.config import ViTConfig
from vitlab.weights.formats.vit_names import Names
from vitlab.weights.source import Shape

Content = dict[str, Any]  # of config.json
Shapes = dict[str, Shape]  # by names without the backbone's prefix; `/name` is outside of it


@dataclass(frozen=True)
class Stated:
    """A config.json with its tensors, as a family reads it.

    Attributes:
        content: every key of the family, those that the file leaves out with the class's default
        shapes: of the tensors
        architecture: the class that it was saved by; empty if the file does not say
        classifies: that class has a classifier
        projection: width of the projection that both towers share
    """

    content: Content
    shapes: Shapes
    architecture: str = ""
    classifies: bool = False
    projection: int = 512


@dataclass(frozen=True, kw_only=True)
class Family(Names):
    """One model_type: its names, and its config.json.

    Attributes:
        model_type: as config.json has it
        classes: names of its classes, the most specific last; the first has no classifier
        classified: transformers has a class with a classifier
        fits: it has a model of this configuration, if no family before it has
        prefix: of the backbone, in classes with a classifier
        gate: the key that says that MLPs are gated
        scale: the key of LayerScale's initial value
        spellings: names that some versions write, by patterns, and what they stand for
        key_bias: the key that says that keys have biases
        stem_norm: the norm of patches before positions
        dense_patch: patches become tokens by a dense layer of (rows, columns, channels)
        any_size: transformers runs it at the size of its processor, whatever config.json says
        square: transformers runs it on square images only
        resampling: how transformers resizes its positions
        reads: further fields
        writes: further keys of config.json
        processor: the class of its image processor, without `ImageProcessor`
        prepared: preprocessing of the released models; used if no file says it
    """

    model_type: str
    classes: tuple[str, ...]
    classified: bool = True
    fits: Callable[[ViTConfig], bool] = lambda config: False
    prefix: str = ""
    gate: str = ""
    scale: str = ""
    spellings: dict[str, str] = field(default_factory=dict)
    key_bias: str = ""
    stem_norm: str = ""
    dense_patch: bool = False
    any_size: bool = False
    square: bool = False
    resampling: Literal["bicubic", "antialiased", "bilinear-antialiased"] = "bicubic"
    reads: Callable[[Stated], dict[str, Any]] = lambda stated: {}
    writes: Callable[[ViTConfig], Content] = lambda config: {}
    processor: str = "ViT"
    prepared: dict[str, Any]


def prepared(normal: dict[str, Any], interpolation: str, crop: float, fit: str) -> dict[str, Any]:
    """Return the preprocessing of a family's released models."""
    return {**normal, "interpolation": interpolation, "crop": crop, "fit": fit}


def read_only(family: Family, model_type: str, *classes: str, **changes: Any) -> Family:
    """Return another name for the same arithmetic, which no model is written as."""
    return replace(
        family, model_type=model_type, classes=classes, fits=lambda config: False, **changes
    )
