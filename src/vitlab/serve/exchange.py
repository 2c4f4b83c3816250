"""Middleware around every request: its id, log line, headers, bounds, and an end in any case."""

import asyncio
import logging
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitlab.errors import (
    BusyError,
    FailedError,
    LateError,
    OptionError,
    ServiceError,
    UserError,
    one_line,
)
from vitlab.serve.logs import log

T = TypeVar("T")
MEBI = 2**20
IDENTITY = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
LONGEST = 16 * 2**10  # bytes of an address, and of all headers
SAID = 500  # characters of an error
TAIL = 200  # bytes of the end of a body
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
OTHER = "other"  # of methods and routes, so that their number is bounded
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Refused(Exception):  # noqa: N818  a response, not a failure of ours
    """A request that gets an error as its answer.

    Attributes:
        status: of HTTP
        message: one line for whoever sent the request
        headers: of the response
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Keep one line."""
        line = one_line(" ".join(message.split()))
        self.status, self.headers = status, dict(headers or {})
        self.message = line if len(line) <= SAID else f"{line[: SAID - 3]}..."
        super().__init__(self.message)


def busy(message: str, seconds: float = 1.0) -> Refused:
    """Return the answer to a request that is worth another try after some seconds."""
    return Refused(503, message, {"Retry-After": str(retry_after(seconds))})


def retry_after(seconds: float) -> int:
    """Return the whole seconds of a Retry-After."""
    return max(1, math.ceil(seconds))


def refused(error: UserError) -> Refused:
    """Return the answer for an error of the engine."""
    if isinstance(error, LateError):
        return Refused(504, str(error))
    if isinstance(error, FailedError):
        return Refused(500, f"{error}: the log describes it")
    if isinstance(error, ServiceError):
        return busy(str(error), error.retry_after if isinstance(error, BusyError) else 1.0)
    return Refused(400 if isinstance(error, OptionError) else 422, str(error))


@dataclass
class BodyMemory:
    """Memory that the bodies of all requests share: `most` bytes, of which some are `used`."""

    most: int
    used: int = 0

    def take(self, count: int) -> None:
        """Count bytes of a body.

        Raises:
            Refused: 503, other requests hold the memory.
        """
        if self.used + count > self.most:
            raise busy("the service holds as many bodies of requests as it may: try again soon")
        self.used += count


class Exchange:
    """One request and its response.

    Attributes:
        id: the client's, if it is well formed, or a new one
        status: of the response; 499 if the client left before it
        images: that the request had
        model: that it asked
        gone: whether the client has left
        tail: the end of the body
        held: bytes of the body that are counted against those of all requests
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, memory: BodyMemory) -> None:
        """Read the id."""
        self._headers = Headers(scope=scope)
        given = self._headers.get("x-request-id", "")
        self.id = given if IDENTITY.fullmatch(given) else secrets.token_hex(8)
        self.scope, self._receive, self._send, self._memory = scope, receive, send, memory
        self.status, self.images, self.model, self.gone = 499, 0, "", False
        self.began = time.perf_counter()
        self.tail, self.held = b"", 0
        self._most, self._received, self._in_memory = 0, 0, True

    @property
    def method(self) -> str:
        """One of the methods that there are here, or `other`."""
        return self.scope["method"] if self.scope["method"] in METHODS else OTHER

    @property
    def route(self) -> str:
        """The route as it was declared, without the parameters of the request."""
        return getattr(self.scope.get("route"), "path", OTHER)

    def expect(self, most: float, *, in_memory: bool = True) -> None:
        """Allow a body of so many bytes; it is refused now if its declared length is larger.

        Raises:
            Refused: 413, it is.
        """
        self._most, self._in_memory = int(most), in_memory
        declared = self._headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._most:
            raise self._too_large()

    async def arrived(self, body: Awaitable[T], patience: float) -> T:
        """Read a body, or a form, within some seconds.

        Raises:
            Refused: 413, too large; 408, too slow; 503, no memory is left; 507, no space on the
                disk; 400, cut off or malformed.
        """
        try:
            async with asyncio.timeout(patience):
                return await body
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {patience:g} seconds") from None
        except ClientDisconnect:
            raise Refused(400, "the connection was closed before the body was complete") from None
        except OSError as error:
            raise Refused(507, f"the body cannot be kept here: {error.strerror}") from None
        except HTTPException as error:  # of a form
            status = 413 if "many files" in error.detail else error.status_code
            raise Refused(status, f"malformed body: {error.detail}") from None

    async def receive(self) -> Message:
        """Pass on a part of the body, within every bound."""
        message = await self._receive()
        self.gone = self.gone or message["type"] == "http.disconnect"
        piece = message.get("body", b"")
        self._received += len(piece)
        self.tail = (self.tail + piece[-TAIL:])[-TAIL:]
        if self._received > self._most:
            raise self._too_large()
        if self._in_memory:
            self._memory.take(len(piece))
            self.held += len(piece)
        return message

    async def send(self, message: Message) -> None:
        """Pass on a part of the response, with the headers that all have."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self.id
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)

    async def left(self) -> None:
        """Wait until the client has left; its body must have been read."""
        while not self.gone:
            await self.receive()

    async def refuse(self, error: Refused) -> None:
        """Answer with an error, unless nobody is there to read it."""
        if self.gone or self.status != 499:
            return
        content = {"error": error.message, "request": self.id}
        response = JSONResponse(content, error.status, error.headers)
        await response(self.scope, self._receive, self.send)

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is larger than {self._most / MEBI:g} MiB")


class Envelope:
    """The outermost part of the application; nothing that goes wrong leaves it.

    Args:
        app: that answers
        hosts: names that the service is called by; none for any
        memory: of the bodies of all requests
        done: called with every exchange at its end
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str],
        memory: BodyMemory,
        done: Callable[[Exchange], None] = lambda exchange: None,
    ) -> None:
        self.app, self.hosts, self.memory, self.done = app, tuple(hosts), memory, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self.memory)
        scope.setdefault("state", {})["exchange"] = exchange
        try:
            _check_head(scope, self.hosts)
            await self.app(scope, exchange.receive, exchange.send)
        except Refused as error:
            await exchange.refuse(error)
        except UserError as error:
            await exchange.refuse(refused(error))
        except Exception:
            log("error", logging.ERROR, error=True, request=exchange.id, route=exchange.route)
            message = "an error of the service, which its log describes under this id"
            await exchange.refuse(Refused(500, message))
        finally:
            self.memory.used -= exchange.held
            self.done(exchange)
            log(
                "request",
                request=exchange.id,
                method=exchange.method,
                route=exchange.route,
                status=exchange.status,
                milliseconds=round(1000 * (time.perf_counter() - exchange.began), 1),
                images=exchange.images,
                model=exchange.model,
            )


def exchange_of(request: Request) -> Exchange:
    """Return the exchange that a request is part of."""
    found: Exchange = request.state.exchange
    return found


def _check_head(scope: Scope, hosts: Sequence[str]) -> None:
    """Refuse a long address, long headers, and a request that calls the service by another name.

    A page of another site may point its own name at 127.0.0.1 (DNS rebinding).

    Raises:
        Refused: 414, 431 or 403.
    """
    if len(scope["path"]) + len(scope.get("query_string", b"")) > LONGEST:
        raise Refused(414, f"the address is longer than {LONGEST // 2**10} KiB")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LONGEST:
        raise Refused(431, f"the headers are larger than {LONGEST // 2**10} KiB")
    given = Headers(scope=scope).get("host", "").lower()
    if hosts and re.sub(r":\d+$", "", given) not in hosts:
        raise Refused(403, f"this service answers only to the Host {', '.join(hosts)}")
