"""The Hugging Face Hub: whether it answers, asked once before anything is wanted of it.

`photos/cats` may be a folder whose name is mistyped or a name on the Hub. Without a network, the
libraries try for half a minute: so one request of at most `SECONDS` comes first. A hub that has
answered is asked again by those who need something, as often as they do. Proxies, HF_ENDPOINT and
HF_HUB_OFFLINE are obeyed as by Hugging Face's own library, whose session this is.
"""

import functools
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitlab.errors import DiskError, UserError

SECONDS = 2.5
PASSING = (429, 500, 502, 503, 504)  # statuses of HTTP that another time may not have
HOME = "set HF_HOME to a folder that can be written"
OFFLINE = "HF_HUB_OFFLINE is set, so that the Hub is not asked"
LOGGERS = ("huggingface_hub", "datasets", "httpx", "httpx2", "urllib3", "filelock", "fsspec")


class SilentError(Exception):
    """The Hub gave no answer; in a few words, why."""


def is_offline() -> bool:
    """Return whether the user wants nothing to be asked of the Hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def is_cached(kind: str, name: str) -> bool:
    """Return whether something of a name is in the local cache of the Hub.

    Args:
        kind: `models` or `datasets`
        name: `user/name`
    """
    from huggingface_hub import constants

    user, _, own = name.partition("/")
    folders = [Path(constants.HF_HUB_CACHE) / f"{kind}--{user}--{own}"]
    if kind == "datasets":  # the copies that are mapped into memory
        made = os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets"
        folders += Path(made).expanduser().glob(f"{user}___*")
    return any(map(_is_folder, folders))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # no permission: what is wrong is said when it is read
        return False


def check_answers() -> None:
    """Ask the Hub for an answer, whatever it is, unless it has given one to this process.

    Raises:
        SilentError: none came within `SECONDS`.
    """
    from huggingface_hub import constants

    _ask(str(constants.ENDPOINT))


@functools.cache
def _ask(endpoint: str) -> None:
    """Send one request; an answer is remembered, silence is not."""
    from huggingface_hub import get_session

    found: list[Exception | None] = []

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=SECONDS, follow_redirects=False)
            found.append(None)
        except Exception as error:  # whatever a proxy, a resolver or TLS may raise
            found.append(error)

    # in a thread, since no time limit of a client ends the search for an address
    thread = threading.Thread(target=ask, name="is the Hub there", daemon=True)
    thread.start()
    thread.join(SECONDS)
    error = found[0] if found else TimeoutError()
    if error is not None:
        late = isinstance(error, TimeoutError) or "Timeout" in type(error).__name__
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise SilentError(f"no answer within {SECONDS:g} s" if late else text)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error, if it has one."""
    return getattr(getattr(error, "response", None), "status_code", None)


def passing(error: BaseException) -> str:
    """Return what another time may not happen, of the network or the Hub; empty of other errors."""
    import httpx2

    chain: BaseException | None = error
    found = ""
    while chain is not None:
        if (status := status_of(chain)) in PASSING:
            return f"the Hub answers {status}"
        if isinstance(chain, httpx2.TransportError | ConnectionError | TimeoutError):
            found = "the Hub does not answer"
        chain = chain.__cause__ or chain.__context__
    return found


def of_disk(error: BaseException, doing: str) -> UserError | None:
    """Return the error of a cache of Hugging Face that cannot be written; None of any other."""
    from huggingface_hub import constants

    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno is not None and chain.filename is not None:
            place = Path(os.fsdecode(chain.filename))
            why = str(chain.strerror).lower()
            homes = [Path(constants.HF_HOME).expanduser(), Path(constants.HF_HUB_CACHE)]
            if any(place in (each, *each.parents) or each in place.parents for each in homes):
                why = f"the cache of Hugging Face cannot be written, {why}"
                return DiskError(f"cannot {doing}: {why}: {place}: {HOME}")
            return DiskError(f"cannot {doing}: {why}: {place}")
        chain = chain.__cause__ or chain.__context__
    return None


@contextmanager
def unheard(*loggers: str) -> Iterator[None]:
    """Keep the lines of other libraries from the user: what matters of them is said in ours."""
    quiet: list[tuple[Any, int]] = []
    for name in loggers or LOGGERS:
        logger = logging.getLogger(name)
        quiet.append((logger, logger.level))
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in quiet:
            logger.setLevel(level)
