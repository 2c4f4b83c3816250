"""Around every request: its id, its log line, security headers, and an end in any case."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitlab.serve.http.access import check_host
from vitlab.serve.http.logs import log, milliseconds
from vitlab.serve.http.problems import Refused

IDENTITY = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
LINGER = 1.0  # seconds in which the rest of a refused body is read, so that the answer is seen
REST = 16 * 2**20  # bytes of it
LONGEST = 16 * 2**10  # bytes of an address, and of all headers
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
OTHER = "other"  # of methods and routes, so that their number is bounded
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Exchange:
    """One request and its response.

    Attributes:
        id: the client's, if it is well formed, or a new one
        status: of the response; 499 where the client left before it
        images: that the request had
        model: that it asked
        began: on the clock `time.perf_counter`
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the id."""
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        self.id = given if IDENTITY.fullmatch(given) else secrets.token_hex(8)
        self.scope, self._receive, self._send = scope, receive, send
        self.status, self.images, self.model = 499, 0, ""
        self.began = time.perf_counter()
        length = headers.get("content-length", "0")
        self._unread = "transfer-encoding" in headers or length.strip("0") != ""
        self.gone = False

    @property
    def method(self) -> str:
        """One of the methods that there are here, or `other`."""
        return self.scope["method"] if self.scope["method"] in METHODS else OTHER

    @property
    def route(self) -> str:
        """The route as it was declared, without what it was asked with."""
        return getattr(self.scope.get("route"), "path", OTHER)

    @property
    def started(self) -> bool:
        """Whether the response has begun."""
        return self.status != 499

    async def receive(self) -> Message:
        """Pass on a part of the body, and note whether it was the last."""
        message = await self._receive()
        self.gone = self.gone or message["type"] == "http.disconnect"
        if self.gone or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        """Pass on a part of the response, with the headers that all have."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self.id
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if self._unread:
                headers["Connection"] = "close"
        elif self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def left(self) -> None:
        """Wait until the client has left; its body must have been read."""
        while not self.gone:
            await self.receive()

    async def _linger(self) -> None:
        """Read what the client still sends.

        A connection that is closed with unread bytes is reset, and the client may never see the
        answer that it already has.
        """
        rest = REST
        try:
            async with asyncio.timeout(LINGER):
                while self._unread and rest > 0:
                    rest -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            self._unread = False

    async def refuse(self, refused: Refused) -> None:
        """Answer with an error, unless nobody is there to read it."""
        if self.gone:
            return
        content = {"error": refused.message, "request": self.id}
        response = JSONResponse(content, refused.status, refused.headers)
        await response(self.scope, self.receive, self.send)


class Envelope:
    """The outermost part of the application; nothing that goes wrong leaves it.

    Args:
        app: what answers
        hosts: names that the service is called by; none for any
        done: called with every exchange at its end
    """

    def __init__(
        self, app: ASGIApp, hosts: Sequence[str], done: Callable[[Exchange], None]
    ) -> None:
        self.app, self.hosts, self.done = app, tuple(hosts), done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        scope.setdefault("state", {})["exchange"] = exchange
        try:
            _check_head(scope)
            check_host(Headers(scope=scope), self.hosts)
            await self.app(scope, exchange.receive, exchange.send)
        except Refused as refused:
            await exchange.refuse(refused)
        except Exception:
            log("error", logging.ERROR, error=True, request=exchange.id, route=exchange.route)
            if not exchange.started:
                message = "an error of the service, which its log describes under this id"
                await exchange.refuse(Refused(500, message))
        finally:
            self.done(exchange)
            log(
                "request",
                request=exchange.id,
                method=exchange.method,
                route=exchange.route,
                status=exchange.status,
                milliseconds=milliseconds(exchange.began),
                images=exchange.images,
                model=exchange.model,
            )


def _check_head(scope: Scope) -> None:
    """Refuse a long address and long headers, whatever the server below has let pass.

    Raises:
        Refused: 414 or 431.
    """
    if len(scope["path"]) + len(scope.get("query_string", b"")) > LONGEST:
        raise Refused(414, f"the address is longer than {LONGEST // 2**10} KiB")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LONGEST:
        raise Refused(431, f"the headers are larger than {LONGEST // 2**10} KiB")
