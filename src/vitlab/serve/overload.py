"""Overload: requests that cannot be answered in time are refused by their first bytes.

A refusal by the application takes a millisecond of Python, most of it to parse the request, so that
a thousand of them a second leave no time for the requests that were accepted. Here nothing is
parsed: while the engine would refuse any image, a connection whose next request is a POST gets one
prepared response. Where its length is plain, the rest is skipped and the connection stays open: to
accept another one costs more than the refusal. GET and HEAD, by which others watch, go on as ever.
"""

import asyncio
import json
import logging
import math
import re
import secrets
import time
from collections.abc import Callable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitlab.serve.exchange import HEADERS, retry_after
from vitlab.serve.logs import log

LINGER = 2.0  # seconds in which a refused client may read the response, if that is the end
SILENCE = 10.0  # seconds between two log lines about refusals
LENGTH = re.compile(rb"\r\ncontent-length: ?(\d{1,12})(?:\r\n|$)")
ALWAYS = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n" + "".join(
    f"{name}: {value}\r\n" for name, value in HEADERS.items()
)
UNCLEAR = (b"transfer-encoding", b"expect", b"close")  # perhaps of another length, or the last one


def shedding(crowded: Callable[[int], float], count: Callable[[], None]) -> type[H11Protocol]:
    """Return uvicorn's HTTP/1.1 protocol that refuses requests while there is no room.

    Args:
        crowded: asked before each POST, with the number of requests under way: seconds after which
            it may come again; 0 if there is room
        count: called for each request that is refused
    """
    said = -math.inf

    class Shedding(H11Protocol):
        """A connection, some of whose requests are refused."""

        skipped = 0.0  # bytes that still belong to a refused request

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Wait for the first request no longer than for the next one."""
            super().connection_made(transport)
            self._wait()

        def _unset_keepalive_if_required(self) -> None:
            """Stop waiting once a request's head is complete, not at its first bytes."""
            if self.conn.their_state is not h11.IDLE:
                super()._unset_keepalive_if_required()

        def data_received(self, data: bytes) -> None:
            """Parse what arrives, or refuse the request that begins with it."""
            dropped = int(min(self.skipped, len(data)))
            data, self.skipped = data[dropped:], self.skipped - dropped
            if data[:5] == b"POST " and self._between() and (seconds := crowded(len(self.tasks))):
                self._refuse(seconds, rest_of(data))
            elif data:
                super().data_received(data)

        def _between(self) -> bool:
            """Whether the connection waits for the first byte of a request."""
            return self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

        def _refuse(self, seconds: float, rest: float) -> None:
            nonlocal said
            count()
            if time.monotonic() - said > SILENCE:
                said = time.monotonic()
                log("overloaded: requests are refused unread", logging.WARNING)
            self.skipped, end = rest, math.isinf(rest)
            self.transport.write(refusal(seconds, end=end))
            super()._unset_keepalive_if_required()
            if end:
                self.transport.write_eof()
                self.loop.call_later(LINGER, self.transport.abort)
            else:
                self._wait()

        def _wait(self) -> None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    return Shedding


def rest_of(data: bytes) -> float:
    """Return how many bytes of a request are still to come; infinity if that is not plain."""
    end = data.find(b"\r\n\r\n")  # without a copy of the body
    head = data[: max(end, 0)].lower()
    found, lengths = LENGTH.search(head), head.count(b"content-length")
    plain = b" http/1.1\r\n" in head and not any(each in head for each in UNCLEAR)
    rest = int(found[1]) - (len(data) - end - 4) if plain and found and lengths == 1 else -1
    return math.inf if rest < 0 else rest


def refusal(seconds: float, *, end: bool) -> bytes:
    """Return the response 503, with the seconds after which the request may come again."""
    number, wait = secrets.token_hex(8), retry_after(seconds)
    error = f"the queue is full: try again in {wait} seconds"
    body = json.dumps({"error": error, "request": number}).encode()
    lines = (
        f"{ALWAYS}Content-Length: {len(body)}\r\nConnection: {'close' if end else 'keep-alive'}\r\n"
        f"Retry-After: {wait}\r\nX-Request-ID: {number}\r\n\r\n"
    )
    return lines.encode() + body
