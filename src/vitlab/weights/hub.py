"""Models to the Hugging Face hub and back, and from its local cache when there is no network."""

import copy
import fnmatch
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitlab.errors import UserError
from vitlab.files import sha256
from vitlab.models.create import Model
from vitlab.weights.save import CONFIG, save
from vitlab.weights.sharded import INDEX, TENSORS, read_index

CARD, PREPROCESSOR, PICKLED = "README.md", "preprocessor_config.json", "pytorch_model.bin"
KEPT = (CONFIG, PREPROCESSOR, CARD, INDEX, PICKLED, "*.safetensors")
TIMEOUT = 10.0  # seconds until the hub counts as out of reach
PREFIXES = ("hf-hub:", "hf://")
FILES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".json", ".toml")  # endings of local files
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w", re.ASCII)
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_hub_name(source: str | Path) -> bool:
    """Whether this names a model on the hub: `user/name`, `hf-hub:user/name`, `hf://user/name`.

    What exists here, a `Path`, and what ends as a file of weights does, is a path.
    """
    if not isinstance(source, str):
        return False
    if source.startswith(PREFIXES):
        return True
    return _may_be(source) and not source.endswith(FILES) and not os.path.lexists(source)


def repository(name: str) -> str:
    """The `user/name` in a hub name.

    Raises:
        ValueError: no model on the hub can be called so.
    """
    bare = name
    for prefix in PREFIXES:
        bare = bare.removeprefix(prefix)
    if not _may_be(bare):
        raise UserError(f"{name!r} is no name of the hub: it must be user/name")
    return bare


def _may_be(name: str) -> bool:
    """Whether the hub allows this user/name."""
    return (
        _NAME.fullmatch(name) is not None
        and len(name) <= 96
        and not any(bad in name for bad in ("--", ".."))
        and not name.endswith(".git")
    )


def push(
    model: Model,
    name: str,
    *,
    private: bool = False,
    token: str | None = None,
    message: str | None = None,
    license: str | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> str:
    """Put a model on the hub, with a card that says what it is; `vitlab.load(name)` gets it back.

    Args:
        model: any that is not fused
        name: `user/name`; made if it is not there, else a new commit that replaces the model
        private: only for you, if it is made
        token: with the right to write; None for the one that `hf auth login` keeps
        message: of the commit
        license: of the weights, `apache-2.0` say; None for the one in the model's provenance
        metrics: as `vitlab.evaluate` gives them; None for those in the model's provenance

    Returns:
        The address of its page.

    Raises:
        ValueError: the model is fused, the name cannot be, or the hub refuses or is out of reach.
    """
    from huggingface_hub import HfApi

    from vitlab.weights.card import card  # it builds on this file

    repo = repository(name)
    shown = copy.copy(model)  # the same tensors under a provenance of its own
    shown.provenance = _told(model.provenance, license, metrics)
    with tempfile.TemporaryDirectory(prefix="vitlab-") as scratch:
        folder = save(shown, Path(scratch) / "model")
        (folder / CARD).write_text(card(shown, repo), encoding="utf-8")
        try:
            api = HfApi(token=token)
            url = api.create_repo(repo, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                commit_message=message or f"Upload {model.config.name}",
                delete_patterns=["model*.safetensors", INDEX],  # a former model's shards
            )
        except Exception as error:  # whatever the libraries below the hub's may raise
            raise _refused(error, f"push to {repo}") from error
    return str(url)


def _told(about: dict[str, Any], license: str | None, metrics: Any) -> dict[str, Any]:
    """A provenance with what is given on pushing; a license of the source weights is kept."""
    told = dict(about)
    if license is not None:
        told["license"] = license
        if about.get("license") not in (None, license):
            told["source_license"] = about["license"]
    if metrics is not None:
        told["metrics"] = {k: v for k, v in metrics.items() if isinstance(v, int | float | str)}
    return told


def fetch(name: str, revision: str | None = None) -> Path:
    """A model of the hub in the local cache, downloaded where it is not there.

    Only what a model needs is downloaded: its configuration, one set of safetensors files, the
    card; `pytorch_model.bin` only where there are no safetensors. Without network, what an earlier
    call downloaded is used, and a line on stderr says so.

    Args:
        name: `user/name`, with `hf-hub:` or `hf://` before it or not
        revision: branch, tag or full commit; None for the main branch

    Returns:
        The folder of the commit, whose name is the full commit.

    Raises:
        ValueError: no such model or revision, no right to it, or no network and not in the cache.
    """
    from huggingface_hub import HfApi, errors, snapshot_download

    repo = repository(name)
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UserError(f"{revision!r} is no branch, tag or commit of {repo}")
    kept = _cached(repo, revision)
    if kept and revision and _COMMIT.fullmatch(revision):  # a commit never changes
        return kept
    what = repo if revision is None else f"{repo} at {revision}"
    try:
        info = HfApi().model_info(repo, revision=revision, timeout=TIMEOUT)
        wanted = _wanted(file.rfilename for file in info.siblings or ())
        if not wanted:
            raise UserError(f"{repo} on the hub holds no weights that can be read")
        return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted))
    except (UserError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise _refused(error, f"load {what}") from error
    except Exception as error:
        if kept is None or _status(error) in (401, 403) or _disk(error):
            missing = "" if kept else ", which is not in the local cache"
            raise _refused(error, f"load {what}{missing}") from error
        print(f"no answer from the hub: using {what} from {kept}", file=sys.stderr, flush=True)
        return kept


def describe(folder: Path) -> dict[str, Any]:
    """Where a folder of weights is from, and what exactly it holds.

    Returns:
        `files`, the sha256 of every file by its name; for a folder of the hub's cache also `name`,
        user/name, and `commit`, in full.
    """
    files = sorted(file for file in folder.iterdir() if file.is_file() and _is_kept(file.name))
    about: dict[str, Any] = {"files": {file.name: sha256(file) for file in files}}
    place = folder.absolute()
    if place.parent.name == "snapshots" and place.parents[1].name.startswith("models--"):
        name = place.parents[1].name.removeprefix("models--").replace("--", "/")
        return {"name": name, "commit": place.name} | about
    return about


def _is_kept(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in KEPT)


def _wanted(names: Iterable[str]) -> list[str]:
    """What to download of a repository's files: one set of weights, and what is beside it."""
    top = {name for name in names if "/" not in name and _is_kept(name)}
    shards = {name for name in top if re.fullmatch(r"model-\d+-of-\d+\.safetensors", name)}
    tensors = {name for name in top if name.endswith(".safetensors")}
    weights = next(
        filter(
            None, (top & {TENSORS}, shards and top & {INDEX} | shards, tensors, top & {PICKLED})
        ),
        set(),
    )
    return sorted(top & {CONFIG, PREPROCESSOR, CARD} | weights) if weights else []


def _cached(repo: str, revision: str | None) -> Path | None:
    """The folder of a revision in the local cache, if its weights are all there."""
    from huggingface_hub import try_to_load_from_cache

    for name in (CONFIG, TENSORS, INDEX, PICKLED):
        file = try_to_load_from_cache(repo, name, revision=revision)
        if isinstance(file, str):
            folder = Path(file).parent
            return folder if _complete(folder) else None
    return None


def _complete(folder: Path) -> bool:
    if (folder / TENSORS).is_file() or not (folder / INDEX).is_file():
        return any(each.name.endswith((".safetensors", PICKLED)) for each in folder.iterdir())
    try:
        return all((folder / name).is_file() for name in read_index(folder / INDEX).values())
    except UserError:
        return False


def _refused(error: Exception, doing: str) -> UserError:
    """What the hub, the network or the disk said, in one line with what would work."""
    from huggingface_hub import errors

    if isinstance(error, UserError):
        return error
    if isinstance(error, errors.GatedRepoError):
        reason = "it is gated: ask for access on its page, then `hf auth login`"
    elif isinstance(error, errors.RevisionNotFoundError):
        reason = "there is no such branch, tag or commit"
    elif isinstance(error, errors.RepositoryNotFoundError):
        reason = "nothing of that name here or on the hub, or it is private: `hf auth login`"
    elif _status(error) in (401, 403):
        reason = "the hub refuses it to you: `hf auth login`, with a token that may do this"
    elif _disk(error):
        reason = f"{getattr(error, 'strerror', None)}: {getattr(error, 'filename', None)}"
    elif status := _status(error):
        reason = f"the hub answers {status}: {_line(error)}"
    else:
        reason = f"the hub cannot be reached: {_line(error)}"
    return UserError(f"cannot {doing}: {reason}")


def _status(error: Exception) -> int | None:
    """The HTTP status in an error, if it has one."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _disk(error: Exception) -> bool:
    """Whether it is the disk, not the hub, that refuses."""
    return isinstance(error, OSError) and error.errno is not None and error.filename is not None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
