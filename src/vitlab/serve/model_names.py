"""Names of models: what may be one, and which one a place has."""

import re
from pathlib import Path

from vitlab.errors import OptionError

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
ENDINGS = (".safetensors", ".npz", ".pth", ".pt", ".bin")


def split(text: str) -> tuple[str, str]:
    """Return the name and the place in `NAME=WEIGHTS`, or in `WEIGHTS` alone.

    Raises:
        OptionError: nothing in the place can be its name.
    """
    name, sign, place = text.partition("=")
    if sign and place and re.fullmatch(NAME, name):
        return name, place
    return name_of(text), text


def name_of(place: str) -> str:
    """Return the name of a run folder, a file or a model on the Hub: its last part.

    Raises:
        OptionError: it has no character that a name may have.
    """
    last = Path(place).absolute().name
    for ending in ENDINGS:
        last = last.removesuffix(ending)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).lstrip("._-")[:100]
    if not name:
        raise OptionError(f"{place!r} gives the model no name: write NAME={place}")
    return name
