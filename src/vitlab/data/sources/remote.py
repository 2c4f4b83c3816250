"""Reading over a network: s3://, gs://, az://, https://, hf:// and what else fsspec knows.

Every request has a deadline and is tried five times, with waits that grow and are drawn at random,
or as long as the server asks for (`Retry-After`). What fails nevertheless is a `SourceError`, never
the damage of an image; what a server refuses for good, or does not have, is a `RefusedError`.

A process has one client per protocol. Nothing is open that a forked process would share.

`--cache-data` (`KeptParts`) keeps the parts that were read in a folder of bounded size. Each is a
file of its own, named after the state of the remote file (so that what has changed there is read
anew), and ends with a checksum. Any number of processes may share the folder: a file appears when
it is complete, and those that were used longest ago go first.
"""

import glob
import hashlib
import os
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.client import responses
from pathlib import Path
from typing import Any

from vitlab.data.sources.listing import find_answer, record_answer
from vitlab.data.sources.paths import reason
from vitlab.data.sources.urls import braces, is_url
from vitlab.errors import DataError, RefusedError, SourceError
from vitlab.files import explained, follow_links, staged_file
from vitlab.packages import check_installed
from vitlab.places import note_cache_file, write_cache_file

TRIES = 5
FIRST, LONGEST = 0.5, 30.0  # seconds before the second try, and before any, whatever a server asks
# seconds for an answer, and one more for so many bytes
ANSWER = 20.0
RATE = 2**18
THREADS = 16  # requests at a time
# bytes between two reads that become one, and of one request
NEAR = 2**16
MOST = 2**23
PACKAGES = {"http": "aiohttp", "https": "aiohttp", "s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}

_ONCE = {"retries": {"total_max_attempts": 1}}  # what is tried again is decided here
_WEB = {"client_kwargs": {"trust_env": True}}  # proxies, and passwords in .netrc
_OPTIONS: dict[str, Any] = {"s3": {"config_kwargs": _ONCE}, "http": _WEB, "https": _WEB}
_MARKS = ("ETag", "etag", "generation", "blob_id", "VersionId", "Last-Modified", "LastModified",
          "last_modified", "updated", "mtime", "created")  # fmt: skip
_AGAIN = (408, 429)  # and from 500 on
_TRANSPORT = ("aiohttp", "httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
_NAMES = (  # of botocore, azure.core, google.auth and http.client
    "ConnectTimeoutError", "ConnectionClosedError", "EndpointConnectionError", "HTTPClientError",
    "IncompleteRead", "IncompleteReadError", "ReadTimeoutError", "ResponseStreamingError",
    "ServiceRequestError", "ServiceResponseError", "TransportError",
)  # fmt: skip


@dataclass(frozen=True)
class Stamp:
    """The state of a remote file: its size, and what changes with its content."""

    size: int
    text: str


def stamp(url: str) -> Stamp:
    """Return the state of a remote file, in one request.

    Raises:
        SourceError: no answer.
        RefusedError: the file does not exist, or may not be read.
    """
    if state := find_answer("state", url):
        size, text = state
        return Stamp(size, text)
    if refusal := find_answer("refusal", url):
        raise RefusedError(refusal)
    try:
        found = _asked(url, "info")
        if not isinstance(found.get("size"), int):
            raise RefusedError(f"cannot read {url}: the server does not say how large it is")
    except RefusedError as error:
        record_answer("refusal", url, str(error))
        raise
    marks = " ".join(f"{key}={found[key]}" for key in _MARKS if found.get(key))
    text = f"{url} {found['size']} {marks}"
    record_answer("state", url, [found["size"], text])
    return Stamp(found["size"], text)


def read_whole(url: str, limit: int) -> bytes:
    """Read a small remote file.

    Raises:
        SourceError: it could not be read, or exceeds the limit.
    """
    size = stamp(url).size
    if size > limit:
        raise RefusedError(f"cannot read {url}: {size:,} bytes exceed the limit of {limit:,}")
    return read_part(url, 0, size)


def read_part(url: str, offset: int, size: int) -> bytes:
    """Read some bytes of a remote file: all of them.

    Raises:
        SourceError: they did not come.
        RefusedError: the file does not exist, or may not be read.
    """
    if not size:
        return b""

    def check(data: bytes) -> None:
        if len(data) > size:
            raise ValueError("the server gives no parts of files (Range)")
        if len(data) < size:
            raise EOFError(f"{len(data):,} of {size:,} bytes came")

    return bytes(_asked(url, "cat_file", check, size, start=offset, end=offset + size))


def read_parts(wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Read parts of remote files, (url, offset, size) each: neighbors together, many at a time."""
    found: dict[int, bytes] = {}

    def read(run: list[int]) -> None:
        url, first, _ = wanted[run[0]]
        data = read_part(url, first, max(sum(wanted[each][1:]) for each in run) - first)
        for each in run:
            start = wanted[each][1] - first
            found[each] = data[start : start + wanted[each][2]]

    runs = list(_runs(wanted))
    with ThreadPoolExecutor(max(1, min(THREADS, len(runs)))) as pool:
        list(pool.map(read, runs))
    return [found[each] for each in range(len(wanted))]


def _runs(wanted: Sequence[tuple[str, int, int]]) -> Iterator[list[int]]:
    """Yield the numbers of parts that one request reads."""
    run: list[int] = []
    end = 0
    for number in sorted(range(len(wanted)), key=wanted.__getitem__):
        url, offset, size = wanted[number]
        if run and (
            url != wanted[run[0]][0]
            or offset > end + NEAR
            or offset + size - wanted[run[0]][1] > MOST
        ):
            yield run
            run = []
        end = max(end, offset + size) if run else offset + size
        run.append(number)
    if run:
        yield run


@cache
def _client(root: str, process: int) -> Any:
    """The client of a process; that of its parent is kept, so that nothing in it is closed."""
    import fsspec

    options = _OPTIONS.get(root.split("://")[0], {})
    return fsspec.core.url_to_fs(root, skip_instance_cache=True, **options)[0]


def _system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    protocol = url.split("://")[0]
    if protocol in PACKAGES:
        check_installed(PACKAGES[protocol], f"{protocol}://")
    try:
        system = _client("/".join(url.split("/")[:3]), os.getpid())
    except (ImportError, ValueError) as error:
        raise DataError(f"{url}: {error}") from None
    return system, str(system._strip_protocol(url))


def _asked(
    url: str,
    what: str,
    check: Callable[[Any], None] = lambda answer: None,
    size: int = 0,
    **given: Any,
) -> Any:
    """Ask a file system, again if need be.

    Args:
        url: of what
        what: the name of a method that takes a path
        check: raises what is wrong with an answer
        size: bytes of an answer, of which each try is given time to send that many
        given: to the method
    """
    (system, path), seconds = _system(url), ANSWER + size / RATE
    tries = 2 if url.startswith("hf:") else TRIES  # the Hub's own library asks six times in each
    for number in range(tries):
        try:
            answer = _answer(system, what, path, seconds, given)
            check(answer)
            return answer
        except Exception as error:  # each library has its own types
            why, after = _failure(error, seconds)
            if after is None:
                raise RefusedError(f"cannot read {url}: {why}") from None
            if number == tries - 1:
                raise SourceError(
                    f"cannot read {url}: {why} ({tries} tries): try again later"
                ) from None
            own = FIRST * 2**number * random.uniform(0.5, 1.5)
            time.sleep(min(LONGEST, max(own, after)))
    raise AssertionError


def _answer(system: Any, what: str, path: str, seconds: float, given: dict[str, Any]) -> Any:
    """Ask once."""
    if not system.async_impl:
        if what == "cat_file" and "hf" in system.protocol:
            given = given | {"cache_type": "none"}  # else megabytes are read ahead
        return getattr(system, what)(path, **given)
    from fsspec.asyn import sync

    return sync(system.loop, getattr(system, f"_{what}"), path, timeout=seconds, **given)


def _failure(error: Exception, seconds: float) -> tuple[str, float | None]:
    """Why a request failed, and the least seconds until it is asked again; None to give up.

    Failures are told apart by their status, or else by their types and those behind them.
    """
    chain = list(_chain(error))
    status, after = next((each for each in map(_answered, chain) if each[0]), (0, 0.0))
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return "no such file", None
    if status >= 400:
        again = status in _AGAIN or status >= 500
        return f"{status} {responses.get(status, '')}".strip(), after if again else None
    if not (lost := [each for each in chain if _is_transport(each)]):
        return reason(error), None
    if any(isinstance(each, TimeoutError) for each in lost):
        return f"no answer within {seconds:.0f} s", 0.0
    return reason(lost[0]), 0.0


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _answered(error: BaseException) -> tuple[int, float]:
    """The HTTP status in an error of one of the libraries, and the seconds of `Retry-After`.

    Each is 0 if there is none, the latter also where it is a date.
    """
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        known = response.get("ResponseMetadata", {})
        numbers = [known.get("HTTPStatusCode")]
        headers = known.get("HTTPHeaders", {})
    else:
        numbers = [getattr(error, "status", None), getattr(error, "status_code", None)]
        if type(error).__module__.split(".")[0] in ("gcsfs", "google"):  # others count otherwise
            numbers.append(getattr(error, "code", None))
        numbers.append(getattr(response, "status_code", None))
        headers = getattr(error, "headers", None) or getattr(response, "headers", None) or {}
    status = next((each for each in numbers if isinstance(each, int) and 100 <= each < 600), 0)
    after = str(headers.get("Retry-After") or headers.get("retry-after") or "")
    return status, float(after) if re.fullmatch(r"\d{1,6}", after) else 0.0


def _is_transport(error: BaseException) -> bool:
    """Whether an error is of the way to a server, not of its answer."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | ValueError):
        return False
    own = type(error).__module__.split(".")[0] in _TRANSPORT or type(error).__name__ in _NAMES
    return own or isinstance(error, OSError | EOFError)


def expand(pattern: str) -> list[str]:
    """Return the files that a path, a glob or a brace pattern stands for, in order.

    `{000..031}` counts with leading zeros, `{a,b}` lists. Files that a glob finds are sorted; files
    that braces spell out are checked when they are opened.

    Raises:
        DataError: a glob that finds nothing, or braces that expand to too many names.
    """
    places: list[str] = []
    for each in braces(pattern):
        if not any(sign in each for sign in "*?["):
            places.append(each)
        elif is_url(each):
            places += _matching(each)
        else:
            places += sorted(glob.glob(str(Path(each).expanduser()), recursive=True))  # noqa: PTH207
    if not places:
        raise DataError(f"no such file: {pattern}")
    return places


def _matching(pattern: str) -> list[str]:
    """Return the remote files that a glob finds, in order."""
    names: list[str] | None = find_answer("names", pattern)
    if names is None:
        system, _ = _system(pattern)
        names = [*map(system.unstrip_protocol, sorted(_asked(pattern, "glob")))]
        record_answer("names", pattern, names)
    return names


# What was read before

OWN = "vitlab-parts"  # folder in the user's
_SHARE = 0.01  # of the limit: what is written, on average, between two looks at the folder
_CHECKSUM = 4  # bytes


@dataclass(frozen=True)
class KeptParts:
    """A folder of parts, and how many bytes it may hold."""

    folder: Path
    limit: int

    @classmethod
    def of(cls, folder: str, gigabytes: float) -> "KeptParts | None":
        """Return the cache of two options; None for no folder.

        Raises:
            DiskError: it cannot be created.
        """
        if not folder:
            return None
        path = follow_links(Path(folder).expanduser()) / OWN  # nothing else is ever removed
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
        return cls(path, round(gigabytes * 1e9))

    def read(self, wanted: Sequence[tuple[str, int, int]], states: Sequence[str]) -> list[bytes]:
        """Read parts of remote files as `read_parts` does, those that are kept from the folder.

        Args:
            wanted: url, offset and size of each
            states: `Stamp.text` of the file of each
        """
        files = [
            self._file(f"{state} {part[1]} {part[2]}")
            for part, state in zip(wanted, states, strict=True)
        ]
        found = [read_kept(file, part[2]) for file, part in zip(files, wanted, strict=True)]
        lost = [number for number, data in enumerate(found) if data is None]
        for number, data in zip(lost, read_parts([wanted[each] for each in lost]), strict=True):
            found[number] = data
            keep(files[number], data)
            if random.random() * _SHARE * self.limit < len(data):
                self._tidy()
        return [data for data in found if data is not None]

    def file(self, url: str, state: Stamp) -> Path:
        """Return a copy of a whole remote file, which is read now or was before."""
        path = self._file(state.text).with_suffix("") / url.rpartition("/")[2]
        if not path.is_file() or path.stat().st_size != state.size:
            self._tidy()
            with staged_file(path) as draft, draft.open("wb") as copy:
                for offset in range(0, state.size, MOST):
                    copy.write(read_part(url, offset, min(MOST, state.size - offset)))
        return path

    def _file(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self.folder / digest[:2] / f"{digest[2:]}.part"

    def _tidy(self) -> None:
        """Remove what was used longest ago, until a tenth of the limit is free."""
        found = []
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with suppress(OSError):  # another process removed it
                    path = Path(folder, name)
                    state = path.stat()
                    found.append((state.st_mtime_ns, state.st_size, path))
        size = sum(each for _, each, _ in found)
        if size <= self.limit:
            return
        for _, each, path in sorted(found):
            if size <= 0.9 * self.limit:
                return
            with suppress(OSError):
                path.unlink()
            size -= each


def keep(file: Path, data: bytes) -> None:
    """Keep what was read, with a checksum, unless the disk refuses: it will be read again."""
    write_cache_file(file, (data, zlib.crc32(data).to_bytes(_CHECKSUM)))


def read_kept(file: Path, size: int) -> bytes | None:
    """Return so many bytes that `keep` kept; None if they are not there, or damaged."""
    note_cache_file(file)
    try:
        content = file.read_bytes()
        os.utime(file)
    except OSError:
        return None
    data = content[:size]
    checksum = content[size:]
    return data if zlib.crc32(data).to_bytes(_CHECKSUM) == checksum else None
