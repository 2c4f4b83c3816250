"""Facts that a user states about weights whose file does not: the options of every command."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Any

from vitlab.errors import OptionError
from vitlab.files import read_bytes
from vitlab.images import Size
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.options import Options, at_least, hints, option, options_of
from vitlab.weights.file_options import Named
from vitlab.weights.formats.records import SILENT

LIMIT = 10_000_000  # bytes of a file of class names
# Of `SILENT`, what decides which tensors there are, so that every reader knows it from them.
KNOWN = ("image_size", "positions_at", "stem_act", "queries")
OF_IMAGES = ("interpolation", "crop", "fit", "tokens")  # how they are prepared
FIELDS = tuple(name for name in SILENT if name not in KNOWN)


def _with(base: type[Options], names: Iterable[str]) -> Any:
    """Make a class with some fields of the configuration, each of which need not be given."""
    made = []
    for name in names:
        about = replace(options_of(ViTConfig)[name], only=None)  # the model's check says it
        each = field(default=None, metadata={"option": about})
        made.append((name, hints(ViTConfig)[name] | None, each))
    return make_dataclass(f"_{base.__name__}", made, bases=(base,), frozen=True, kw_only=True)


class OfNetwork(_with(Named, (name for name in FIELDS if name not in OF_IMAGES))):  # type: ignore[misc]
    """Fields of the network that a weights file may not state (default: as recognized)."""


@dataclass(frozen=True, kw_only=True)
class Stated(_with(OfNetwork, OF_IMAGES)):  # type: ignore[misc]
    """Facts that a weights file may not state (default: as recognized)."""

    image_size: Size | None = option(
        None,
        "input size in pixels, to which positions are resized (default: that of the weights)",
        at_least(1),
    )
    labels: tuple[str, ...] = option(
        (),
        "names of the classes in the order of the outputs, or one file: a name per line, or JSON",
    )

    def __post_init__(self) -> None:
        """Check each option as the configuration does; read the names of classes from a file."""
        super().__post_init__()
        object.__setattr__(self, "labels", _names(self.labels))


def _names(labels: tuple[str, ...]) -> tuple[str, ...]:
    """The names themselves, or those in the one file that is named."""
    if len(labels) != 1:
        return labels
    file = Path(labels[0])
    if file.suffix not in (".txt", ".json") and not file.is_file():
        raise OptionError(f"labels: no such file: {file}; give every name, or a file of names")
    try:
        text = read_bytes(file, LIMIT).decode("utf-8-sig")
        found = json.loads(text) if text.lstrip()[:1] in ("[", "{") else text.rstrip().splitlines()
    except (OSError, ValueError) as error:
        raise OptionError(f"labels: {file} cannot be read: {error}") from None
    if isinstance(found, dict):  # {"0": "cat"}
        found = [found.get(str(number)) for number in range(len(found))]
    names = [each.strip() if isinstance(each, str) else "" for each in found]
    if not names or not all(names):
        raise OptionError(
            f"labels: {file} must have one name per line, a JSON list of names, or a JSON object "
            'from "0", "1", … to names'
        )
    return tuple(names)
