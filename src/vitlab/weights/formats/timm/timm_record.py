"""What a checkpoint records of the model that it was made of, beside its tensors."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitlab.images import IMAGENET, Size
from vitlab.weights.formats.timm.timm_arguments import stated
from vitlab.weights.formats.timm.timm_config import PREPROCESSING, plain
from vitlab.weights.formats.timm.timm_rules import known
from vitlab.weights.source import Source


@dataclass(frozen=True)
class Record:
    """What was found.

    Attributes:
        architecture: timm's name; empty if there is none
        fields: of the configuration
        instead: fields in place of those that the name implies
        image_size: in pixels
        arguments: of timm's constructor
    """

    architecture: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    instead: Mapping[str, Any] = field(default_factory=dict)
    image_size: Size | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


def record_of(source: Source) -> Record:
    """Read `arch` and `args` of a training checkpoint.

    timm's own have both, and a model's images are prepared as its name implies; other code that
    trains timm's models has `args.model` alone, and prepares images as for ImageNet (DeiT, MAE).
    """
    stored = source.record
    args = stored.get("args", {})
    args = vars(args) if isinstance(args, Namespace) else args if isinstance(args, Mapping) else {}
    own, other = (
        name.partition(".")[0] if isinstance(name, str) else ""
        for name in (stored.get("arch"), args.get("model"))
    )
    if not known(own):
        instead = {**IMAGENET, "crop": 0.875} if known(other) else {}
        return Record(other if known(other) else "", instead=instead)
    extra = args.get("model_kwargs")
    arguments = dict(extra) if isinstance(extra, Mapping) else {}
    fields = {ours: plain(args[key]) for key, ours in PREPROCESSING.items() if args.get(key)}
    fields |= stated({"global_pool": args.get("gp")} | arguments)
    size = args.get("img_size") or (args.get("input_size") or (None,))[-1]
    return Record(own, fields, {}, size if isinstance(size, int) else None, arguments)
