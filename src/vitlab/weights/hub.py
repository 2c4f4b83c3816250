"""Folders to the Hugging Face Hub and back, and from its local cache without a network."""

import fnmatch
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitlab.errors import DiskError, HubError, WeightsError
from vitlab.files import sha256
from vitlab.weights.containers.weight_folders import STATE
from vitlab.weights.hub_names import repository
from vitlab.weights.sharded import (
    ADAPTER,
    CONFIG,
    INDEX,
    OPEN_CLIP,
    PICKLED,
    PICKLED_INDEX,
    PREPROCESSOR,
    PROCESSOR,
    TENSORS,
    read_index,
)

CARD = "README.md"
EXPLAINING = (CONFIG, PREPROCESSOR, PROCESSOR, OPEN_CLIP, ADAPTER, CARD)
# Files of weights: one set of them is downloaded, the first that a repository has. The last are
# somebody's own names, of which there must be one.
SETS = (
    (TENSORS,), (INDEX, "model-*-of-*.safetensors"), ("*.safetensors",), (PICKLED,),
    (PICKLED_INDEX, "pytorch_model-*-of-*.bin"), ("open_clip_pytorch_model.bin",),
    ("*.npz", "*.pth", "*.pt", "*.ckpt", "*.pth.tar", "*.bin"),
)  # fmt: skip
DOWNLOADED = (*EXPLAINING, *(pattern for patterns in SETS for pattern in patterns))
TIMEOUT = 10.0  # seconds until the Hub counts as unreachable
UNREACHABLE = "the Hub cannot be reached"
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def publish(
    folder: Path, name: str, message: str, *, private: bool = False, token: str | None = None
) -> str:
    """Upload a folder as one commit; it replaces a model published there before.

    Args:
        folder: of weights, their configuration and a card
        name: `user/name`; created if it does not exist
        message: of the commit
        private: visible only to you, if it is created
        token: with the right to write; None for the one that `hf auth login` stored

    Returns:
        The URL of its page.

    Raises:
        HubError: an invalid name, or the Hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi

    repo = repository(name)
    try:
        api = HfApi(token=token)
        url = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            commit_message=message,
            delete_patterns=["model*.safetensors", INDEX],  # shards of an earlier model
        )
    except Exception as error:  # whatever the libraries below the Hub's may raise
        raise _refused(error, f"push to {repo}") from error
    return str(url)


def fetch(name: str, revision: str | None = None) -> Path:
    """Download a model of the Hub into the local cache, unless it is there.

    Only what a model needs is downloaded: its configuration, one set of safetensors files, the
    card; `pytorch_model.bin` only if there are no safetensors. Without a network, the files of an
    earlier call are used, and a line on stderr says so.

    Args:
        name: `user/name`, optionally after `hf-hub:` or `hf://`
        revision: branch, tag or full commit; None for the main branch

    Returns:
        The folder of the commit, whose name is the full commit.

    Raises:
        HubError: no such model or revision, no right to it, or no network and not in the cache.
        DiskError: the cache cannot be written.
    """
    from huggingface_hub import HfApi, errors, snapshot_download

    repo = repository(name)
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise HubError(f"{revision!r} is not a branch, tag or commit of {repo}")
    cached = _cached(repo, revision)
    if cached and revision and _COMMIT.fullmatch(revision):  # a commit never changes
        return cached
    label = repo if revision is None else f"{repo} at {revision}"
    try:
        info = HfApi().model_info(repo, revision=revision, timeout=TIMEOUT)
        wanted = _wanted(repo, (file.rfilename for file in info.siblings or ()))
        if not wanted:
            raise HubError(
                f"{repo} on the Hub has no supported weights (.safetensors, {PICKLED}, …)"
            )
        return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted))
    except (HubError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise _refused(error, f"load {label}") from error
    except Exception as error:
        if cached is None or _status(error) in (401, 403) or _is_disk(error):
            missing = "" if cached else ", which is not in the local cache"
            raise _refused(error, f"load {label}{missing}") from error
        print(f"the Hub does not answer: using {label} from {cached}", file=sys.stderr, flush=True)
        return cached


def describe(folder: Path) -> dict[str, Any]:
    """Return the origin of a folder of weights, and the checksums of its files.

    Returns:
        `files`, the sha256 of every file by its name; for a folder of the Hub's cache also `name`,
        user/name, and `commit`, in full.
    """
    files = sorted(
        file for file in folder.iterdir() if file.is_file() and _fits(file.name, DOWNLOADED)
    )
    about: dict[str, Any] = {"files": {file.name: sha256(file) for file in files}}
    place = folder.absolute()
    if place.parent.name == "snapshots" and place.parents[1].name.startswith("models--"):
        name = place.parents[1].name.removeprefix("models--").replace("--", "/")
        return {"name": name, "commit": place.name} | about
    return about


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _wanted(repo: str, names: Iterable[str]) -> list[str]:
    """The files of a repository to download: one set of weights, and what explains it.

    Raises:
        HubError: it has several files of weights under names of its own.
    """
    top = {name for name in names if "/" not in name and _fits(name, DOWNLOADED)}
    for patterns in SETS:
        weights = {name for name in top if _fits(name, patterns) and not name.startswith(STATE)}
        indexed = not patterns[0].endswith(".json") or (patterns[0] in top and len(weights) > 1)
        if weights and indexed:
            if patterns == SETS[-1] and len(weights) > 1:
                raise HubError(
                    f"{repo} on the Hub has several files of weights "
                    f"({', '.join(sorted(weights))}): download one and give its path"
                )
            return sorted(top & set(EXPLAINING) | weights)
    return []


def _cached(repo: str, revision: str | None) -> Path | None:
    """The folder of a revision in the local cache, if its weights are all there."""
    from huggingface_hub import try_to_load_from_cache

    for name in (CONFIG, TENSORS, INDEX, PICKLED, PICKLED_INDEX, OPEN_CLIP, ADAPTER, CARD):
        file = try_to_load_from_cache(repo, name, revision=revision)
        if isinstance(file, str):
            folder = Path(file).parent
            return folder if _complete(folder) else None
    return None


def _complete(folder: Path) -> bool:
    for single, index in ((TENSORS, INDEX), (PICKLED, PICKLED_INDEX)):
        if (folder / index).is_file() and not (folder / single).is_file():
            try:
                return all(
                    (folder / name).is_file() for name in read_index(folder / index).values()
                )
            except WeightsError:
                return False
    weights = [name for names in SETS for name in names if not name.endswith(".json")]
    return any(_fits(each.name, weights) for each in folder.iterdir())


def _refused(error: Exception, doing: str) -> HubError | DiskError:
    """Turn an error of the Hub, the network or the disk into one line with what would work."""
    from huggingface_hub import errors

    if isinstance(error, HubError):
        return error
    if _is_disk(error):
        place, why = getattr(error, "filename", None), getattr(error, "strerror", None)
        return DiskError(f"cannot {doing}: {why}: {place}")
    if isinstance(error, errors.GatedRepoError):
        reason = "it is gated: request access on its page, then run `hf auth login`"
    elif isinstance(error, errors.RevisionNotFoundError):
        reason = "no such branch, tag or commit"
    elif isinstance(error, errors.RepositoryNotFoundError):
        reason = "not found here or on the Hub; if it is private, run `hf auth login`"
    elif _status(error) in (401, 403):
        reason = "permission denied: run `hf auth login` with a token that allows this"
    elif status := _status(error):
        reason = f"the Hub answers {status}: {_line(error)}"
    else:
        reason = f"{UNREACHABLE}: {_line(error)}"
    return HubError(f"cannot {doing}: {reason}")


def _status(error: Exception) -> int | None:
    """The HTTP status of an error, if it has one."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _is_disk(error: Exception) -> bool:
    """Return whether the disk failed, not the Hub."""
    return isinstance(error, OSError) and error.errno is not None and error.filename is not None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
