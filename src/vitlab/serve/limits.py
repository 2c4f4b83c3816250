"""Limits of a service, and the names of its models; nothing here imports PyTorch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.errors import OptionError
from vitlab.options import Options, above, at_least, at_most, option
from vitlab.weights.hub import check_weights

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
ENDINGS = (".safetensors", ".npz", ".pth", ".pt", ".bin")


@dataclass(frozen=True, kw_only=True)
class Limits(Options):
    """Bounds of the service; beyond each there is an error at once, and nothing grows.

    Raises:
        OptionError: a value that cannot be.
    """

    max_body: float = option(16.0, "largest body of a request, in MiB", above(0), at_most(1024))
    max_memory: float = option(
        256.0, "most memory for the bodies of all requests, in MiB; then it is 503", above(0)
    )
    max_model: float = option(4096.0, "largest model that a request may add, in MiB", above(0))
    max_pixels: float = option(25.0, "largest image, in megapixels", above(0), at_most(50))
    max_images: int = option(16, "most images per request", at_least(1), at_most(1024))
    queue: int = option(
        64, "most images that wait or are computed; beyond it the answer is 503", at_least(1)
    )
    timeout: float = option(
        30.0, "most seconds from a request's last byte to its answer; then it is 504", above(0)
    )
    patience: float = option(
        10.0, "most seconds that a request may take to arrive; then it is 408", above(0)
    )
    max_batch: int = option(
        0, "most images in one pass through a model (0: chosen by measuring)", at_least(0)
    )
    decoders: int = option(
        0, "processes that decode images (0: one per four cores, at least one)", at_least(0)
    )


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


def named_models(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the name and the place of each model.

    Raises:
        OptionError: nothing can be a model's name, or two have the same.
        WeightsError: no such file or folder.
    """
    found = tuple(map(split, words))
    check_weights(tuple(place for _, place in found))
    names = [name for name, _ in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise OptionError(f"two models are named {twice[0]}: name them, as {twice[0]}-2=WEIGHTS")
    return found
