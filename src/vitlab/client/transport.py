"""Transport of requests: httpx2's clients, and its exceptions as faults."""

import asyncio
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from vitlab.client.calls import Fault, Send
from vitlab.client.reading import Reply
from vitlab.errors import OptionError

if TYPE_CHECKING:
    import httpx2

MOST_ANSWER = 256 * 2**20  # bytes
CONNECT = 10.0  # seconds until a machine that does not answer is given up
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # never through a proxy of the environment
A = TypeVar("A", "httpx2.Client", "httpx2.AsyncClient")


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
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise OptionError(
            f"url must be an address such as http://127.0.0.1:8000, without a user, not {url!r}"
        )
    if parsed.query or parsed.fragment:
        raise OptionError(f"url must be the root of a service, without ? and #, not {url!r}")
    return str(parsed).rstrip("/")


def opened(kind: type[A], url: str, token: str, transport: Any) -> A:
    """Return a client of httpx2 for one service.

    Raises:
        OptionError: a token that no header can carry.
    """
    if not all("!" <= char <= "~" for char in token):
        raise OptionError("token must be of visible ASCII characters, without spaces")
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    mounts = {f"all://{host}": None for host in LOOPBACK} if transport is None else None
    return kind(base_url=url, headers=headers, transport=transport, mounts=mounts)


def send(http: "httpx2.Client", step: Send) -> Reply | Fault:
    """Send a request and return its reply, or why there is none."""
    time.sleep(step.after)
    until = time.monotonic() + step.seconds
    try:
        with closing(http.send(_built(http, step), stream=True)) as response:
            body = bytearray()
            for part in response.iter_bytes():
                body += part
                if time.monotonic() > until:
                    return Fault("late", "the answer took too long")
                if len(body) > MOST_ANSWER:
                    return _endless()
            return _reply(response, bytes(body))
    except Exception as error:
        return _fault(error)


async def send_async(http: "httpx2.AsyncClient", step: Send) -> Reply | Fault:
    """Send a request and return its reply, or why there is none."""
    await asyncio.sleep(step.after)
    try:
        async with asyncio.timeout(step.seconds):
            response = await http.send(_built(http, step), stream=True)
            try:
                body = bytearray()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MOST_ANSWER:
                        return _endless()
                return _reply(response, bytes(body))
            finally:
                await response.aclose()
    except Exception as error:
        return _fault(error)


def _built(http: "httpx2.Client | httpx2.AsyncClient", step: Send) -> Any:
    """Return the request: one image as it is, several as the parts of a form."""
    import httpx2

    ask, limit = step.ask, httpx2.Timeout(step.seconds, connect=min(step.seconds, CONNECT))
    params = dict(ask.params)
    if not ask.images:
        return http.build_request("GET", ask.path, params=params, timeout=limit)
    if len(ask.images) == 1:
        kind = {"Content-Type": "application/octet-stream"}
        return http.build_request(
            "POST", ask.path, params=params, content=ask.images[0], headers=kind, timeout=limit
        )
    files = [
        ("image", (f"image {number}", data, "application/octet-stream"))
        for number, data in enumerate(ask.images)
    ]
    return http.build_request("POST", ask.path, params=params, files=files, timeout=limit)


def _reply(response: "httpx2.Response", body: bytes) -> Reply:
    headers = response.headers
    return Reply(
        response.status_code, body, headers.get("Retry-After", ""), headers.get("Location", "")
    )


def _endless() -> Fault:
    return Fault("refused", f"the answer has more than {MOST_ANSWER // 2**20} MiB")


def _fault(error: Exception) -> Fault:
    """Return what an exception means.

    Raises:
        Exception: it has nothing to do with the network.
    """
    import httpx2

    text = str(error) or type(error).__name__
    match error:
        case httpx2.ConnectTimeout() | httpx2.ConnectError() | httpx2.ProxyError():
            return Fault("unreached", text)
        case httpx2.TimeoutException() | TimeoutError():
            return Fault("late", text)
        case httpx2.NetworkError() | httpx2.RemoteProtocolError():
            return Fault("broken", text)
        case httpx2.RequestError() | httpx2.InvalidURL():
            return Fault("refused", text)
        case RuntimeError() if "closed" in text:
            return Fault("refused", "this client is closed")
    raise error
