"""The interface of a format: one function that reads, one that writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.seen import NOTHING, Seen
from vitlab.models.unlike import Unlike
from vitlab.options import check_known, options_of
from vitlab.weights.delta_base import DeltaBase
from vitlab.weights.formats.entry import Entry
from vitlab.weights.formats.records import WITHOUT_EFFECT, words
from vitlab.weights.sharded import Fields
from vitlab.weights.source import StoredTensors

Files = dict[str, Fields]  # JSON objects by file name
OF_IMAGES = words("mean std interpolation crop fit center tokens labels")
# Fields that matter in training alone, or whose exact number does.
OF_TRAINING = {*WITHOUT_EFFECT, "class_token"} - {*OF_IMAGES}
# Others resize positions in their own way; at the model's own size nothing is lost.
WITHOUT_LOSS = OF_TRAINING | {"resampling"}


@dataclass(frozen=True)
class Hints:
    """Facts from the user that the file may not state.

    Attributes:
        name: a model's name: the papers' (`ViT-B/16`) or timm's (`vit_base_patch16_224`)
        choices: fields of the configuration
        image_size: the size that the model will have, perhaps the one its positions are for
        part: which of several models in one file
        drop: one or several names or patterns (`*`) of tensors to leave out

    Raises:
        OptionError: a choice that no model has.
    """

    name: str = ""
    choices: Fields = field(default_factory=dict)
    image_size: Size | None = None
    part: str = ""
    drop: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse fields that no model has."""
        known = options_of(ViTConfig) | options_of(ResNetConfig) | options_of(TokenizerConfig)
        check_known(self.choices, known, "model option")


@dataclass(frozen=True)
class Reading:
    """A file that was recognized.

    Attributes:
        format: what it is, in words
        config: the configuration of its model
        entries: where each of the model's tensors comes from
        left_out: patterns of names that the model does not need, each with the reason
        origins: where fields of the configuration come from; `records.whole` has those of all
        notes: what else the user should know, a line each
        exact: tensors keep the type they have in the file; else they become float32
        provenance: of the weights, where the format stores it
        base: the model that tensors without an entry come from; None if every one has an entry
        image_size: that the model is used at, where the user does not say; None for that of the
            configuration, which its positions have
        seen: what the model has learned from, where the file itself says it
        unlike: how far an image is from that; None if it is not known
    """

    format: str
    config: ModelConfig
    entries: Sequence[Entry]
    left_out: dict[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    exact: bool = False
    provenance: Fields | None = None
    base: DeltaBase | None = None
    image_size: Size | None = None
    seen: Seen = field(default_factory=lambda: NOTHING)
    unlike: Unlike | None = None


@dataclass(frozen=True)
class Writing:
    """How a model is written.

    Attributes:
        entries: which tensors the format stores, and how each is made
        files: JSON files beside the tensors
        archive: name of an uncompressed `.npz` for the tensors; empty for safetensors
        stored: the configuration of the tensors that are written, whose positions may be of another
            size than the model's; None for the model's own
    """

    entries: Sequence[Entry]
    files: Files = field(default_factory=dict)
    archive: str = ""
    stored: ModelConfig | None = None


# The tensors of a model of a configuration, without memory: names, shapes and types.
TensorsOf = Callable[[ModelConfig], dict[str, Tensor]]
# A format's door in, which gives None for another format, and its door out, which is also given the
# provenance; `WeightsError` if what it recognizes is damaged or unsupported, or cannot be written.
Reads = Callable[[StoredTensors, Hints, TensorsOf], Reading | None]
Writes = Callable[[ModelConfig, Fields, TensorsOf], Writing]


def cannot(format: str, *what: object) -> WeightsError:
    """Return the error of a format that cannot represent a model, or some of its fields."""
    return WeightsError(f"{format} cannot represent {' and '.join(map(str, what))}")


def check_fields(format: str, config: ModelConfig, values: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse a configuration with another value than those that a format can represent.

    Raises:
        WeightsError: names the first such field.
    """
    for name, allowed in values.items():
        if (value := getattr(config, name)) not in allowed:
            raise cannot(format, f"{name}={value!r}")


def check_kept(format: str, config: ModelConfig, theirs: ModelConfig) -> list[str]:
    """Return what a format does not keep of how images are prepared: `crop=0.9`.

    Args:
        format: for messages
        config: of the model
        theirs: what is read of the model in the format

    Raises:
        WeightsError: another field differs; the message names it.
    """
    lost = []
    for name in (each.name for each in fields(config)):
        mine, other = getattr(config, name), getattr(theirs, name)
        without = name == "layer_scale" and not other  # else it is where training starts
        if mine == other or (name in WITHOUT_LOSS and not without):
            continue
        if name == "pool" and other == "both":  # half of which is zero
            continue
        if name not in OF_IMAGES:
            raise cannot(format, f"{name}={mine!r} in this model")
        if _gives_same_pixels(name, config, theirs):
            continue
        lost.append(f"{name}={mine!r}")
    return lost


def _gives_same_pixels(name: str, config: ModelConfig, theirs: ModelConfig) -> bool:
    """Return whether a field differs in its number alone: 224 pixels of crop=0.9 are of 248."""
    both = config, theirs
    mine, other = ([int(side / each.crop + 1e-6) for side in each.size] for each in both)
    if name == "center":  # the longer side of an image may be cut anywhere
        spare = [whole - side for whole, side in zip(mine, config.size, strict=True)]
        return all(each.fit == "squash" for each in both) and all(each % 4 != 3 for each in spare)
    return name == "crop" and mine == other
