"""The record of one family of transformers: names, config.json, use."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from vitlab.models.config import ViTConfig
from vitlab.weights.formats.entries import Names, table
from vitlab.weights.formats.names import first_name, found, parts_of, placed
from vitlab.weights.sharded import Fields
from vitlab.weights.source import Shape

# Suffixes of classes whose outputs our model has; of others only the backbone is read.
CLASSIFIERS = (
    "ForImageClassification", "ForImageClassificationWithTeacher", "ForAudioClassification",
)  # fmt: skip


@dataclass(frozen=True)
class StatedModel:
    """The image model of a file, as its family reads it.

    Attributes:
        family: of its model_type
        given: its part of config.json
        content: every key of the family, those that the file leaves out with the class's default
        prefix: of its tensors
        stored: the file's names by the family's; `/name` is outside of the backbone
        shapes: by the family's names
        architecture: the class that it was saved by; empty if the file does not say
        projection: width of the projection that both towers share
        tower: it is one of several models in the file
    """

    family: "Family"
    given: Fields
    content: Fields
    prefix: str
    stored: dict[str, str]
    shapes: dict[str, Shape]
    architecture: str = ""
    projection: int = 512
    tower: bool = False

    @property
    def classifies(self) -> bool:
        """Whether it has a classifier."""
        return "/classifier.weight" in self.shapes or self.architecture.endswith(CLASSIFIERS)

    def in_file(self, name: str) -> str:
        """Return the name that a tensor has, or would have, in the file."""
        outside = self.prefix.removesuffix("vision_model.") + name[1:]
        there = outside if name.startswith("/") else self.prefix + name
        return self.stored.get(name, there)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model_type: its names, and its config.json.

    Attributes:
        title: its model_type, and names of its classes, the most specific last; the first has no
            classifier
        names: of its tensors; `/name` is outside of the backbone
        gated: of gated MLPs, where they have others
        classified: transformers has a class with a classifier
        fits: it has a model of this configuration, if no family before it has
        prefix: of the backbone, in classes with a classifier
        spellings: names that some versions write, by patterns, and what they stand for
        key_bias: the key that says that keys have biases
        register_rows: registers have positions
        any_size: transformers runs it at the size of its processor, whatever config.json says
        square: transformers runs it on square images only
        resampling: how transformers resizes its positions
        reads: further fields, or a record of them
        writes: further keys of config.json
        processor: the class of its image processor, without `ImageProcessor`
        prepared: record of the preprocessing of the released models; used if no file says it
    """

    title: str
    names: Names
    gated: Names = field(default_factory=dict)
    classified: bool = True
    fits: Callable[[ViTConfig], bool] = lambda config: False
    prefix: str = ""
    spellings: dict[str, str] = field(default_factory=dict)
    key_bias: str = ""
    register_rows: bool = False
    any_size: bool = False
    square: bool = False
    resampling: str = "bicubic"
    reads: Callable[[StatedModel], Fields] | str = ""
    writes: Callable[[ViTConfig], Fields] = lambda config: {}
    processor: str = "ViT"
    prepared: str

    @property
    def model_type(self) -> str:
        """The key of config.json."""
        return self.title.split()[0]

    @property
    def classes(self) -> list[str]:
        """The names of its classes."""
        return self.title.split()[1:]

    @property
    def patch(self) -> str:
        """The name of the kernel of patches."""
        return first_name(self.names, "patch.weight")

    @property
    def has_projection(self) -> bool:
        """Whether its classes without a classifier have a projection into a space of texts."""
        return self.classes[-1].endswith("WithProjection")


def names_of(
    family: Family, config: ViTConfig, shapes: dict[str, Shape] | None = None, key_bias: bool = True
) -> Names:
    """Return the names of a model's tensors; of those of a file if there is one."""
    names = {**family.names, **(family.gated if config.ffn == "swiglu" else {})}
    if shapes is not None:
        names = found(shapes, names).names
    if not key_bias:
        query, _, value = parts_of(family.names, "qkv.bias")
        names |= table(f"qkv.bias keyless({query} {value})")
    return placed(names, True, True) if family.register_rows and config.registers else names


def derived(family: Family, names: str, title: str, **changes: Any) -> Family:
    """Return another family, whose names differ from this one's in some parts."""
    return replace(family, names=family.names | table(names), title=title, **changes)
