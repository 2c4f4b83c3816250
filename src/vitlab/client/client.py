"""`vitlab.Client`, which asks a service for predictions and features over HTTP."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.client.reading import (
    Reply,
    answers,
    features,
    parsed,
    reason,
    refused,
    said_by,
    unreadable,
    value_of,
)
from vitlab.client.sendable import encoded
from vitlab.data.sources.pictures import Form, Picture, is_one, several
from vitlab.errors import BusyError, ImageError, LateError, OptionError, ServiceError
from vitlab.evaluation.classified_image import ClassifiedImage
from vitlab.options import Options, above, at_least, at_most, option

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
One = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image
Many = list[Picture] | list[Form] | tuple[Form, ...]
Some = Form | Iterable[Form]
Read = Callable[[dict[str, Any], Sequence[str], str], list[T | ImageError]]
File = tuple[str, bytes]  # an image's name, and what is sent

MOST_WAIT = 10.0  # seconds between two tries, whatever the service asks for
MOST_BYTES = 12 * 2**20  # of the images of one request, where more than one is in it
CONNECT = 10.0  # seconds until a machine that does not answer is given up
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # never through a proxy of the environment


@dataclass(frozen=True, kw_only=True)
class Terms(Options):
    """How long a client waits, how often it tries, and how much it asks at a time.

    Raises:
        OptionError: a value that cannot be.
    """

    timeout: float = option(60.0, "most seconds for a request with all its tries", above(0))
    retries: int = option(2, "most tries after the first", at_least(0))
    batch: int = option(16, "most images per request", at_least(1))
    parallel: int = option(4, "most requests at a time for one list", at_least(1), at_most(64))


class Client:
    """Ask a service that `vitlab serve` started. Threads may share one.

        with vitlab.Client("http://127.0.0.1:8000") as client:
            client.predict("photo.jpg").classes

    A full queue (status 503) is tried again after the seconds that the service names, and a broken
    connection after 0.1 s and more, within `timeout` and `retries`. Long lists are sent as several
    requests, some at a time. Every error is a `vitlab.UserError`:

    - `ImageError`: an image that cannot be read, here or by the service
    - `OptionError`: an unknown model, or an invalid value
    - `BusyError`: the queue was still full at the last try
    - `LateError`: no answer in time
    - `ServiceError`: no service at this address, a token missing, or another failure
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = Terms.timeout,
        retries: int = Terms.retries,
        batch: int = Terms.batch,
        parallel: int = Terms.parallel,
        transport: "httpx2.BaseTransport | None" = None,
    ) -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            url: root of the service, as `http://127.0.0.1:8000`
            token: that the service was started with, if it was
            timeout: most seconds for a request with all its tries
            retries: most tries after the first
            batch: most images per request; halved where the service takes fewer
            parallel: most requests at a time for one list
            transport: of httpx2, to send requests in another way than over the network

        Raises:
            OptionError: a value that cannot be.
        """
        import httpx2

        self._terms = Terms(timeout=timeout, retries=retries, batch=batch, parallel=parallel)
        self._place, self._token = address(url), bool(token)
        if not all("!" <= char <= "~" for char in token):
            raise OptionError("token must be of visible ASCII characters, without spaces")
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        mounts = {f"all://{host}": None for host in LOOPBACK} if transport is None else None
        self._http = httpx2.Client(
            base_url=self._place, headers=headers, transport=transport, mounts=mounts
        )

    @overload
    def predict(self, images: One, model: str = "", top: int = 5) -> ClassifiedImage: ...
    @overload
    def predict(self, images: Many, model: str = "", top: int = 5) -> list[ClassifiedImage]: ...
    @overload
    def predict(
        self, images: Some, model: str = "", top: int = 5
    ) -> ClassifiedImage | list[ClassifiedImage]: ...
    def predict(
        self, images: Some, model: str = "", top: int = 5
    ) -> ClassifiedImage | list[ClassifiedImage]:
        """Return the likeliest classes, as `vitlab.classify` does; or what else the model gives.

        That is a `reading.HeadAnswer`, of a run that segments, detects or regresses.

        Args:
            images: one image or any number of them, as `vitlab.preprocess` takes them; files are
                sent as they are, others as PNG
            model: its name, if the service has several
            top: number of classes per image; of classifiers alone

        Returns:
            An answer for one image, a list of them for a list or a batch. In a list, an image that
            cannot be read has an `error`.

        Raises:
            ImageError: the one image cannot be read.
            OptionError: no such model.
            ServiceError: no answer; `BusyError` and `LateError` are two kinds of it.
        """
        if top < 1:
            raise OptionError(f"top must be at least 1, not {top}")
        found = self._asked_of_all("predict", images, {"top": str(top)}, model, answers)
        if is_one(images):
            return _sound(found[0][1])
        return [
            ClassifiedImage(name, error=str(one)) if isinstance(one, ImageError) else one
            for name, one in found
        ]

    def features(self, images: Some, model: str = "") -> NDArray[np.float32]:
        """Return the features that the classifier of a model sees: (n, features).

        Args:
            images: one image or any number of them, as `predict` takes them
            model: its name, if the service has several

        Raises:
            ImageError: one of them cannot be read.
            OptionError: no such model.
            ServiceError: no answer; `BusyError` and `LateError` are two kinds of it.
        """
        found = self._asked_of_all("features", images, {}, model, features)
        return np.stack([_sound(one) for _, one in found])

    def models(self) -> list[dict[str, Any]]:
        """Return what the service has: an object per model, with its `name` and `classes`.

        Raises:
            ServiceError: no answer.
        """
        return cast(list[dict[str, Any]], self._get("models", "models"))

    def health(self) -> dict[str, Any]:
        """Return what the service says about itself.

        Raises:
            ServiceError: no answer.
        """
        return {"status": self._get("health", "status")}

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._place!r})"

    def _get(self, path: str, key: str) -> Any:
        reply = self._reply(path, {})
        if reply.status != 200:
            raise refused(reply, self._place, self._token)
        return value_of(reply, key, self._place)

    def _asked_of_all(
        self, path: str, images: Some, params: dict[str, str], model: str, read: Read[T]
    ) -> list[tuple[str, T | ImageError]]:
        """Ask about images, in several requests at a time; return each one's name and answer."""
        params |= {"model": model} if model else {}
        named = [
            (str(each) if isinstance(each, str | Path) else f"image {number}", each)
            for number, each in enumerate(several(images))
        ]
        size = self._terms.batch
        parts = [named[start : start + size] for start in range(0, len(named), size)]
        if len(parts) == 1:
            found = self._part(path, params, named, read)
        else:
            with ThreadPoolExecutor(self._terms.parallel) as pool:
                futures = [pool.submit(self._part, path, params, part, read) for part in parts]
                try:
                    found = [one for future in futures for one in future.result()]
                finally:
                    pool.shutdown(cancel_futures=True)
        return [(name, one) for (name, _), one in zip(named, found, strict=True)]

    def _part(
        self, path: str, params: dict[str, str], named: list[tuple[str, Picture]], read: Read[T]
    ) -> list[T | ImageError]:
        """Ask about some images, in one request unless they are large."""
        found: list[File | ImageError] = []
        for name, picture in named:
            try:
                found.append((name, encoded(picture, name)))
            except ImageError as error:
                found.append(error)
        groups = _by_size([each for each in found if isinstance(each, tuple)])
        told = (one for group in groups for one in self._asked(path, params, group, read))
        return [each if isinstance(each, ImageError) else next(told) for each in found]

    def _asked(
        self, path: str, params: dict[str, str], files: list[File], read: Read[T]
    ) -> list[T | ImageError]:
        """Ask about images; about the halves where the service refuses them together."""
        reply = self._reply(path, params, [data for _, data in files])
        names = [name for name, _ in files]
        if reply.status == 200:
            return read(parsed(reply), names, self._place)
        if reply.status not in (413, 422):
            raise refused(reply, self._place, self._token)
        if len(files) == 1:
            return [unreadable(names[0], reason(reply, self._place))]
        middle = len(files) // 2
        halves = (files[:middle], files[middle:])
        return [one for half in halves for one in self._asked(path, params, half, read)]

    def _reply(self, path: str, params: dict[str, str], images: Sequence[bytes] = ()) -> Reply:
        """Send a request until there is a reply that no other try would change.

        A full queue (503), a proxy without its service (502) and a broken connection are tried
        again: after the seconds of Retry-After, else after 0.1 s, doubled each time, and up to half
        as much more, so that clients that were refused together do not come again together. Every
        request may be sent twice, because none changes anything.

        Raises:
            BusyError: the queue was still full.
            LateError: no reply in time.
            ServiceError: no connection, or one that kept breaking.
        """
        until, tries, growing = time.monotonic() + self._terms.timeout, 0, 0.1
        while True:
            result = self._sent(path, params, images, until)
            tries += 1
            if isinstance(result, Reply):
                if result.status not in (502, 503):
                    return result
                asked = seconds_of(result.retry_after)
                error: ServiceError = self._busy(result, tries)
            else:
                asked, text = 0.0, f"{_times(tries)}: {result}"
                error = ServiceError(f"the connection to {self._place} broke{text}")
            wait = max(asked, growing) * random.uniform(1, 1.5)
            if tries > self._terms.retries or time.monotonic() + wait >= until:
                raise error
            time.sleep(wait)
            growing = min(2 * growing, MOST_WAIT)

    def _sent(
        self, path: str, params: dict[str, str], images: Sequence[bytes], until: float
    ) -> Reply | str:
        """Send a request once; return the reply, or how its connection broke.

        Raises:
            LateError: no reply by `until`.
            ServiceError: no other try would change it.
        """
        import httpx2

        try:
            with closing(
                self._http.send(self._built(path, params, images, until), stream=True)
            ) as (response):
                body = bytearray()
                for part in response.iter_bytes():
                    body += part
                    if time.monotonic() > until:
                        raise httpx2.ReadTimeout("")
                after = response.headers.get("Retry-After", "")
                return Reply(response.status_code, bytes(body), after)
        except (httpx2.ConnectTimeout, httpx2.ConnectError, httpx2.ProxyError) as error:
            raise ServiceError(
                f"cannot reach a service at {self._place} ({_text(error)}): start it with `vitlab "
                "serve`, or check the address and the port"
            ) from None
        except httpx2.TimeoutException:
            raise LateError(
                f"the service at {self._place} did not answer within {self._terms.timeout:g} s: "
                "give a larger timeout"
            ) from None
        except (httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
            return _text(error)
        except httpx2.RequestError as error:
            raise ServiceError(f"no answer from {self._place}: {_text(error)}") from None

    def _built(
        self, path: str, params: dict[str, str], images: Sequence[bytes], until: float
    ) -> "httpx2.Request":
        """Return the request: one image as it is, several as the parts of a form."""
        import httpx2

        seconds = max(until - time.monotonic(), 0.001)
        limit = httpx2.Timeout(seconds, connect=min(seconds, CONNECT))
        plain = "application/octet-stream"
        content: dict[str, Any] = {}
        if len(images) == 1:
            content = {"content": images[0], "headers": {"Content-Type": plain}}
        elif images:
            named = enumerate(images)
            content = {"files": [("image", (f"image {n}", data, plain)) for n, data in named]}
        method = "POST" if images else "GET"
        return self._http.build_request(method, path, params=params, timeout=limit, **content)

    def _busy(self, reply: Reply, tries: int) -> BusyError:
        """Return the error of a service that was busy at the last try."""
        state = "is busy" if reply.status == 503 else "cannot be reached by its proxy"
        said = f" ({text})" if (text := said_by(reply)) else ""
        return BusyError(
            f"the service at {self._place} {state}{_times(tries)}{said}: try again later, or with "
            f"more time or tries (timeout={self._terms.timeout:g}, retries={self._terms.retries})",
            seconds_of(reply.retry_after) or 1.0,
        )


class Given(TypedDict, total=False):
    """The keywords of `Client`."""

    timeout: float
    retries: int
    batch: int
    parallel: int
    transport: "httpx2.BaseTransport | None"


class AsyncClient:
    """`vitlab.Client` for an event loop: the same methods, awaited, each in a thread.

    async with vitlab.AsyncClient("http://127.0.0.1:8000") as client:
        answer = await client.predict("photo.jpg")
    """

    def __init__(self, url: str, token: str = "", **terms: Unpack[Given]) -> None:
        """Prepare to ask; the arguments and errors are those of `vitlab.Client`."""
        self._client = Client(url, token, **terms)

    @overload
    async def predict(self, images: One, model: str = "", top: int = 5) -> ClassifiedImage: ...
    @overload
    async def predict(
        self, images: Many, model: str = "", top: int = 5
    ) -> list[ClassifiedImage]: ...
    async def predict(
        self, images: Any, model: str = "", top: int = 5
    ) -> ClassifiedImage | list[ClassifiedImage]:
        """Return the likeliest classes: see `vitlab.Client.predict`."""
        return await asyncio.to_thread(self._client.predict, images, model, top)

    async def features(self, images: Some, model: str = "") -> NDArray[np.float32]:
        """Return the features, (n, features): see `vitlab.Client.features`."""
        return await asyncio.to_thread(self._client.features, images, model)

    async def models(self) -> list[dict[str, Any]]:
        """Return what the service has: see `vitlab.Client.models`."""
        return await asyncio.to_thread(self._client.models)

    async def health(self) -> dict[str, Any]:
        """Return what the service says about itself: see `vitlab.Client.health`."""
        return await asyncio.to_thread(self._client.health)

    async def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._client!r}"


def address(url: str) -> str:
    """Return the address of a service without a slash at its end.

    Raises:
        OptionError: it is not the root of a service.
    """
    import httpx2

    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        parsed = httpx2.URL("")
    whole = parsed.scheme in ("http", "https") and parsed.host
    if not whole or parsed.userinfo or parsed.query or parsed.fragment:
        raise OptionError(
            "url must be the root of a service, such as http://127.0.0.1:8000, without a user, ? "
            f"and #, not {url!r}"
        )
    return str(parsed).rstrip("/")


def seconds_of(header: str) -> float:
    """Return the seconds of a Retry-After; 1 if it is a date or anything else."""
    if not header:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        return 1.0
    return seconds if 0 <= seconds < 86400 else 1.0


def _times(tries: int) -> str:
    return f" after {tries} tries" if tries > 1 else ""


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _sound(found: T | ImageError) -> T:
    """Return what was found for an image; an error is raised."""
    if isinstance(found, ImageError):
        raise found
    return found


def _by_size(files: list[File]) -> Iterator[list[File]]:
    """Split files so that those of one request have at most `MOST_BYTES` together."""
    group: list[File] = []
    for file in files:
        if group and sum(len(data) for _, data in group) + len(file[1]) > MOST_BYTES:
            yield group
            group = []
        group.append(file)
    if group:
        yield group
