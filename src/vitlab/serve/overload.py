"""Overload: requests that cannot be answered in time are refused by their first bytes.

A refusal by the application takes a millisecond of Python, most of it to parse the request, so that
a thousand of them a second leave no time for the requests that were accepted. Here nothing is
parsed: while the engine would refuse any image, a connection whose next request is a POST gets one
prepared response, and its end. GET and HEAD, by which others watch the service, go on as ever.
"""

import json
import logging
import math
import secrets
import time
from collections.abc import Callable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitlab.serve.exchange import HEADERS, retry_after
from vitlab.serve.logs import log

LINGER = 2.0  # seconds in which a refused client may read the response
SILENCE = 10.0  # seconds between two log lines about refusals


def shedding(crowded: Callable[[int], float], count: Callable[[], None]) -> type[H11Protocol]:
    """Return uvicorn's HTTP/1.1 protocol that refuses requests while there is no room.

    Args:
        crowded: asked before each POST, with the number of requests under way: seconds after which
            it may come again; 0 if there is room
        count: called for each request that is refused
    """
    said = -math.inf

    class Shedding(H11Protocol):
        """A connection; once it has refused a request, it only waits for its end."""

        refused = False

        def data_received(self, data: bytes) -> None:
            """Parse what arrives, or refuse the request that begins with it."""
            if self.refused:  # the rest of the body: unread bytes would reset the connection
                return
            if data[:5] == b"POST " and self._between() and (seconds := crowded(len(self.tasks))):
                self.refused = True
                self._refuse(seconds)
                return
            super().data_received(data)

        def _between(self) -> bool:
            """Whether the connection waits for the first byte of a request."""
            return self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

        def _refuse(self, seconds: float) -> None:
            nonlocal said
            count()
            if time.monotonic() - said > SILENCE:
                said = time.monotonic()
                log("overloaded: requests are refused unread", logging.WARNING)
            self.transport.write(refusal(seconds))
            self.transport.write_eof()
            self.loop.call_later(LINGER, self.transport.abort)

    return Shedding


def refusal(seconds: float) -> bytes:
    """Return the response 503, with the seconds after which the request may come again."""
    number, wait = secrets.token_hex(8), retry_after(seconds)
    error = f"the queue is full: try again in {wait} seconds"
    body = json.dumps({"error": error, "request": number}).encode()
    fields = {
        "Content-Type": "application/json",
        "Content-Length": len(body),
        "Connection": "close",
        "Retry-After": wait,
        "X-Request-ID": number,
        **HEADERS,
    }
    lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
    return f"HTTP/1.1 503 Service Unavailable\r\n{''.join(lines)}\r\n".encode() + body
