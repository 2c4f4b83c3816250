"""Names of models on the Hugging Face Hub, told from paths.

Nothing here imports PyTorch, so that the command line answers a mistyped path at once.
"""

import os
import re
from pathlib import Path

from vitlab.errors import HubError, OptionError, WeightsError
from vitlab.models.names import shape_of

PREFIXES = ("hf-hub:", "hf://")
FILES = (  # endings of local files
    ".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".tar", ".json", ".toml",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w", re.ASCII)


def is_hub_name(source: str | Path) -> bool:
    """Return whether this names a model on the Hub: `user/name`, `hf-hub:…` or `hf://…`.

    Existing files, a `Path`, and names that end like a file of weights are paths.
    """
    if not isinstance(source, str):
        return False
    if source.startswith(PREFIXES):
        return True
    if source.endswith(FILES) or os.path.lexists(source):
        return False
    return _is_valid(source) and not _is_shape(source)


def missing(source: str | Path) -> WeightsError:
    """Return the error about a source that is neither a file nor a folder."""
    if _is_shape(str(source)):
        return WeightsError(
            f"{source} names a shape, not weights: vitlab.create makes it with random weights, "
            "vitlab.load takes a file, a folder or user/name on the Hub"
        )
    return WeightsError(f"no such file or folder: {source}")


def _is_shape(name: str) -> bool:
    """Return whether this is a model's name in the papers' notation, `ViT-B/16`."""
    try:
        return bool(shape_of(name))
    except OptionError:
        return False


def repository(name: str) -> str:
    """Return the `user/name` in a Hub name.

    Raises:
        HubError: it is not a valid name.
    """
    bare = name
    for prefix in PREFIXES:
        bare = bare.removeprefix(prefix)
    if not _is_valid(bare):
        raise HubError(f"{name!r} is not a Hub name; expected user/name")
    return bare


def _is_valid(name: str) -> bool:
    """Return whether the Hub allows this user/name."""
    return (
        _NAME.fullmatch(name) is not None
        and len(name) <= 96
        and not any(bad in name for bad in ("--", ".."))
        and not name.endswith(".git")
    )


def check_weights(sources: str | tuple[str, ...]) -> None:
    """Refuse weights that cannot exist: no file or folder, and not a name on the Hub.

    Raises:
        WeightsError: no such file or folder.
    """
    for each in (sources,) if isinstance(sources, str) else sources:
        if each and not is_hub_name(each) and not os.path.lexists(each):
            raise missing(each)
