"""What a file or folder of weights contains, tensor by tensor, without building a model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitlab.images import Size
from vitlab.weights.formats.origins import whole
from vitlab.weights.formats.room import Hints, names_of
from vitlab.weights.load import place_of, recognize
from vitlab.weights.matching import collect, unused


@dataclass(frozen=True)
class TensorSource:
    """Where tensors of a model come from.

    Attributes:
        ours: names in the model's state dict
        theirs: names in the file; empty if the value follows from the configuration
        shapes: of theirs
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LoadCheck:
    """A source that was recognized, and whose tensors were all read and checked.

    Attributes:
        source: the argument
        format: the format that was recognized
        model: the papers' notation
        config: every field of the resulting model
        origins: where each field comes from: option, file, tensors, name, family or assumed
        tensors: where each tensor comes from, in the model's order
        left_out: names in the file that the model does not need, and why
        notes: what was assumed, and how to settle it
    """

    source: str
    format: str
    model: str
    config: dict[str, Any]
    origins: dict[str, str]
    tensors: tuple[TensorSource, ...]
    left_out: dict[str, str]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return asdict(self)


def load_check(
    source: str | Path,
    *,
    name: str = "",
    image_size: Size | None = None,
    part: str = "",
    drop: str | Sequence[str] = (),
    base: str | Path | None = None,
    **choices: Any,
) -> LoadCheck:
    """Recognize a source and check it as `vitlab.load` does, with the same arguments.

    Raises:
        WeightsError: as `vitlab.load`.
    """
    hints = Hints(name, choices, image_size, part, names_of(drop))
    found, reading = recognize(place_of(source)[0], hints, base)
    collect(reading, found)
    config, origins = reading.config, whole(reading.config, reading.origins)
    if image_size is None and reading.image_size is not None:
        config = config.sized(reading.image_size)
    return LoadCheck(
        source=str(source),
        format=reading.format,
        model=config.name,
        config=config.as_dict(),
        origins={name: str(origin) for name, origin in origins.items()},
        tensors=tuple(
            TensorSource(ours, tuple(map(found.in_file, theirs)), tuple(map(found.shape, theirs)))
            for ours, theirs, *_ in reading.entries
        ),
        left_out={found.in_file(name): why for name, why in unused(reading, found).items()},
        notes=reading.notes,
    )
