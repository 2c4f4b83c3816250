"""Models on the Hugging Face Hub: their names, told from paths, and down into its local cache.

Nothing here imports PyTorch, so that the command line answers a mistyped path at once.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from vitlab.errors import HubError, OptionError, UnreachableError, UserError, WeightsError
from vitlab.files import SEEN, sha256
from vitlab.hub import (
    OFFLINE,
    SilentError,
    check_answers,
    is_cached,
    is_offline,
    of_disk,
    passing,
    status_of,
    unheard,
)
from vitlab.models.names import shape_of
from vitlab.progress import named_if_slow, say
from vitlab.weights.sharded import (
    ADAPTER,
    CONFIG,
    ENDINGS,
    INDEXED,
    NAMED,
    OPEN_CLIP,
    PICKLED,
    PREPROCESSOR,
    PROCESSOR,
    UNLIKE,
    Fields,
    model_files,
    shard_files,
)

PREFIXES = ("hf-hub:", "hf://")
OF_FILES = (*ENDINGS, ".tar", ".json", ".toml")  # ends of local paths, not of names on the Hub
CARD = "README.md"
EXPLAINING = (CONFIG, PREPROCESSOR, PROCESSOR, OPEN_CLIP, ADAPTER, CARD, SEEN, UNLIKE)
TIMEOUT = 10.0  # seconds until a hub that has answered before counts as unreachable
UNREACHABLE = "the Hub cannot be reached"
_NAME = re.compile(  # what the Hub allows
    r"(?!.*(--|\.\.|\.git\Z))(?=.{3,96}\Z)[A-Za-z0-9][\w.-]*/[\w.-]*\w", re.ASCII
)
_REVISION = re.compile(r"(?!.*\.\.)[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_hub_name(source: str | Path) -> bool:
    """Return whether this names a model on the Hub: `user/name`, `hf-hub:…` or `hf://…`.

    Existing files, a `Path`, and names that end like a file of weights are paths.
    """
    if not isinstance(source, str):
        return False
    if source.startswith(PREFIXES):
        return True
    if source.endswith(OF_FILES) or os.path.lexists(source):
        return False
    return bool(_NAME.fullmatch(source)) and not _is_shape(source)


def repository(name: str) -> str:
    """Return the `user/name` in a Hub name.

    Raises:
        HubError: it is not a valid name.
    """
    bare = name.removeprefix(PREFIXES[0]).removeprefix(PREFIXES[1])
    if not _NAME.fullmatch(bare):
        raise HubError(f"{name!r} is not a Hub name; expected user/name")
    return bare


def missing(source: str | Path) -> WeightsError:
    """Return the error about a source that is neither a file nor a folder."""
    if _is_shape(str(source)):
        return WeightsError(
            f"{source} names a shape, not weights: vitlab.create makes it with random weights, "
            "vitlab.load takes a file, a folder or user/name on the Hub"
        )
    return WeightsError(f"no such file or folder: {source}")


def check_weights(sources: str | tuple[str, ...]) -> None:
    """Refuse weights that cannot exist: no file or folder, and not a name on the Hub.

    Raises:
        WeightsError: no such file or folder.
        HubError: nor is it in the local cache, and the Hub gives no answer.
    """
    for each in (sources,) if isinstance(sources, str) else sources:
        if not each or os.path.lexists(Path(each).expanduser()):
            continue
        if not is_hub_name(each):
            raise missing(each)
        repo = repository(each)
        if not is_cached("models", repo):
            try:
                check_hub(repo)
            except HubError as error:
                raise not_here(each, error) from error


def not_here(source: str | Path, error: HubError) -> HubError:
    """Return the error about a name that may be a mistyped path, or a name on the Hub."""
    if str(source).startswith(PREFIXES):
        return error
    return type(error)(f"no such file or folder: {source}; on the Hub: {error}")


def check_hub(repo: str, doing: str = "") -> None:
    """Ask once whether the Hub answers at all.

    Args:
        repo: `user/name`
        doing: what for; empty to load what is not in the local cache

    Raises:
        HubError: it does not, or HF_HUB_OFFLINE is set.
    """
    doing = doing or f"load {repo}, which is not in the local cache"
    if is_offline():
        raise HubError(f"cannot {doing}: {OFFLINE}")
    try:
        check_answers()
    except SilentError as error:
        raise UnreachableError(f"cannot {doing}: {UNREACHABLE}: {error}") from error


def _is_shape(name: str) -> bool:
    """Return whether this is a model's name in the papers' notation, `ViT-B/16`."""
    try:
        return bool(shape_of(name))
    except OptionError:
        return False


def fetch(name: str, revision: str | None = None) -> Path:
    """Download a model of the Hub into the local cache, unless it is there.

    Only what a model needs is downloaded: its configuration, the card, and its weights once,
    `pytorch_model.bin` only if there is no `model.safetensors`. Without a network, the files of an
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
    from huggingface_hub import errors

    repo = repository(name)
    if revision is not None and not _REVISION.fullmatch(revision):
        raise HubError(f"{revision!r} is not a branch, tag or commit of {repo}")
    cached = _cached(repo, revision)
    if cached and revision and _COMMIT.fullmatch(revision):  # a commit never changes
        return cached
    label = repo if revision is None else f"{repo} at {revision}"
    absent = "" if cached else ", which is not in the local cache"
    try:
        check_hub(repo, f"load {label}{absent}")
        with unheard():
            return _download(repo, revision)
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise refused(error, f"load {label}") from error
    except Exception as error:
        final = isinstance(error, HubError) and not isinstance(error, UnreachableError)
        final = final and not is_offline()
        if cached is None or final or status_of(error) in (401, 403) or _is_disk(error):
            raise refused(error, f"load {label}{absent}") from error
        why = OFFLINE if is_offline() else "the Hub does not answer"
        say(f"{why}: using {label} from {cached}")
        return cached


def _download(repo: str, revision: str | None) -> Path:
    """Return the folder of a model of the Hub in the local cache, after what it lacks has come."""
    from huggingface_hub import HfApi, snapshot_download

    info = HfApi().model_info(repo, revision=revision, timeout=TIMEOUT)
    wanted = _wanted(repo, (file.rfilename for file in info.siblings or ()))
    if not wanted:
        raise HubError(f"{repo} on the Hub has no supported weights (.safetensors, {PICKLED}, …)")
    with named_if_slow(f"downloading {repo}"):
        return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted))


def describe(folder: Path) -> Fields:
    """Return the origin of a folder of weights, and the checksums of its files.

    Returns:
        `files`, the sha256 of every file by its name; for a folder of the Hub's cache also `name`,
        user/name, and `commit`, in full.
    """
    files = [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and (file.name in EXPLAINING or file.name.endswith((*ENDINGS, INDEXED)))
    ]
    about: Fields = {"files": {file.name: sha256(file) for file in files}}
    place = folder.absolute()
    if place.parent.name == "snapshots" and place.parents[1].name.startswith("models--"):
        name = place.parents[1].name.removeprefix("models--").replace("--", "/")
        return {"name": name, "commit": place.name} | about
    return about


def _wanted(repo: str, names: Iterable[str]) -> list[str]:
    """The files of a repository to download: one model, and what explains it."""
    top = {name for name in names if "/" not in name}
    weights = model_files(top)
    if len(weights) > 1 and weights[0] not in NAMED:
        raise HubError(
            f"{repo} on the Hub has several files of weights ({', '.join(weights)}): download one "
            "and give its path"
        )
    return sorted({*weights, *top.intersection(EXPLAINING)}) if weights else []


def _cached(repo: str, revision: str | None) -> Path | None:
    """The folder of a revision in the local cache, if a model is there with all its shards."""
    from huggingface_hub import try_to_load_from_cache

    names = (*EXPLAINING, *NAMED)
    found = (try_to_load_from_cache(repo, name, revision=revision) for name in names)
    file = next((each for each in found if isinstance(each, str)), None)
    if file is None:
        return None
    folder = Path(file).parent
    weights = model_files(each.name for each in folder.iterdir() if each.is_file())
    try:
        if weights and weights[0].endswith(INDEXED):
            shard_files(folder / weights[0])
    except WeightsError:
        return None
    return folder if weights else None


def refused(error: Exception, doing: str) -> UserError:
    """Return an error of the Hub, the network or the disk as one line with what would work."""
    from huggingface_hub import errors

    if isinstance(error, HubError):
        return error
    if _is_disk(error) and (of := of_disk(error, doing)):
        return of
    status = status_of(error)
    said = " ".join(str(error).split())[:200] or type(error).__name__
    reasons = (
        (isinstance(error, errors.GatedRepoError),
         "it is gated: request access on its page, then run `hf auth login`"),
        (isinstance(error, errors.RevisionNotFoundError), "no such branch, tag or commit"),
        (isinstance(error, errors.RepositoryNotFoundError),
         "not found here or on the Hub; if it is private, run `hf auth login`"),
        (status in (401, 403),
         "permission denied: run `hf auth login` with a token that allows this"),
        (status, f"the Hub answers {status}: {said}"),
        (True, f"{UNREACHABLE}: {said}"),
    )  # fmt: skip
    kind = UnreachableError if passing(error) else HubError
    return kind(f"cannot {doing}: {next(reason for holds, reason in reasons if holds)}")


def _is_disk(error: Exception) -> bool:
    """Return whether the disk failed, not the Hub."""
    return isinstance(error, OSError) and error.errno is not None and error.filename is not None
