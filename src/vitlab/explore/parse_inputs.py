"""Words of the command line: which are models, and which are images.

Nothing here imports PyTorch, so that the command line answers a mistyped path at once.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from vitlab.data.decode.formats import SUFFIXES, format_of
from vitlab.data.exists import PATTERN, nearest_beside
from vitlab.errors import DataError, OptionError
from vitlab.serve.limits import NAME, named_models
from vitlab.weights.sharded import model_files

OF_MODEL = ("config.json", "run.toml", "model", "checkpoints", "open_clip_config.json")
HEAD = 64  # bytes that tell an image


def parse_inputs(words: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Tell models from images by what they are.

    Args:
        words: weights (a run folder, a saved model, a file, `user/name` on the Hub, NAME=WEIGHTS),
            and image files, folders of them and glob patterns

    Returns:
        Name and place of each model; files, folders and glob patterns of images.

    Raises:
        DataError: no such file or folder.
        WeightsError: likewise, of what would be weights.
        OptionError: no model among them, or two of the same name.
    """
    images = tuple(word for word in words if _is_images(word))
    weights = named_models([word for word in words if word not in images])
    if not weights:
        raise OptionError(
            "name a model to explore: a run folder, a saved model, a weights file or user/name on "
            "the Hugging Face Hub"
        )
    return weights, images


def _is_images(word: str) -> bool:
    """Return whether a word names images.

    Raises:
        DataError: it names an image that is not there.
    """
    path = Path(word).expanduser()
    if path.is_file():
        with path.open("rb") as stream:
            return bool(format_of(stream.read(HEAD)))
    if path.is_dir():  # a run, a saved model, or with a file of weights?
        names = {each.name for each in path.iterdir()}
        return not (names.intersection(OF_MODEL) or model_files(names))
    if re.fullmatch(f"{NAME}=.+", word):
        return False
    if any(sign in word for sign in PATTERN):
        return True
    if path.suffix.lower() in SUFFIXES:
        near = nearest_beside(word)
        raise DataError(f"no such file: {word}{f'; did you mean {near}?' if near else ''}")
    return False
