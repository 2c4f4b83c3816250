"""What a file or folder of weights is, tensor by tensor, without making a model of it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitlab.images import Size
from vitlab.weights.load import place_of, understand
from vitlab.weights.reading import Hints, collect, reason, unused


@dataclass(frozen=True)
class Mapped:
    """Where tensors of ours come from.

    Attributes:
        ours: names in the model's state dict
        theirs: names in the file; none where the value follows from the configuration
        shapes: of theirs
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Look:
    """A source understood, every tensor read once and found whole.

    Attributes:
        source: what was given
        format: what was recognized
        model: the papers' notation
        config: every field of the model that results
        tensors: the mapping, in the model's order
        left_out: names in the file that the model has no use for, and why
        notes: what was assumed
    """

    source: str
    format: str
    model: str
    config: dict[str, Any]
    tensors: tuple[Mapped, ...]
    left_out: dict[str, str]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def look(
    source: str | Path, *, name: str = "", image_size: Size | None = None, **choices: Any
) -> Look:
    """Recognize a source and check it as `vitlab.load` does; the arguments are the same.

    Raises:
        ValueError: what `vitlab.load` would say.
    """
    path, _ = place_of(source)
    found, reading = understand(path, Hints(name, choices, image_size))
    collect(reading, found)
    tensors = tuple(
        Mapped(entry.ours, entry.theirs, tuple(found.shape(each) for each in entry.theirs))
        for entry in reading.entries
    )
    left_out = {each: reason(reading, each) for each in unused(reading, found)}
    return Look(
        str(source),
        reading.format,
        reading.config.name,
        reading.config.as_dict(),
        tensors,
        left_out,
        reading.notes,
    )
