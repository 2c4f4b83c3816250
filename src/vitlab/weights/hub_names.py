"""Names of models on the Hugging Face Hub, told from paths.

Nothing here imports PyTorch, so that the command line answers a mistyped path at once.
"""

import os
import re
from pathlib import Path

from vitlab.errors import HubError, WeightsError

PREFIXES = ("hf-hub:", "hf://")
FILES = (  # endings of local files
    ".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".tar", ".msgpack", ".json", ".toml",
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
    return _is_valid(source) and not source.endswith(FILES) and not os.path.lexists(source)


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
            raise WeightsError(f"no such file or folder: {each}")
