"""One connection: bounds on everything that uvicorn itself would wait for without end."""

import asyncio
import json
import resource
import secrets
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitlab.serve.http.logs import log

PATIENCE = 10.0  # seconds in which the headers of a request must arrive
STALLED = 30_000  # milliseconds after which a client that reads nothing is cut off
MOST = 4096  # connections, where the system allows as many


def most_connections() -> int:
    """Return how many connections may be open, leaving files for everything else."""
    return max(16, min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


class Connection(H11Protocol):
    """A connection that ends if it does nothing, and gives way to others where there are many."""

    patience = PATIENCE
    most = most_connections()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        self._waiting: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        opened = transport.get_extra_info("socket")
        if opened is not None and opened.family != socket.AF_UNIX:
            # asyncio does so only for sockets that name their protocol; else answers wait 40 ms.
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED)
        if len(self.connections) > self.most:
            self._make_room()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        super().connection_lost(exc)
        self._stop_waiting()

    def data_received(self, data: bytes) -> None:
        """Read on; a request whose headers are complete is no longer waited for."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    @property
    def idle(self) -> bool:
        """Whether no request has come, or not all of its headers."""
        return self.conn.their_state is h11.IDLE

    def _watch(self) -> None:
        """Wait for headers, from the moment on at which the last request ended."""
        if not self.idle or self.transport.is_closing():
            self._stop_waiting()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.patience, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.idle:
            self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has been idle, or else this one: so that a probe gets in."""
        others = (each for each in self.connections if each is not self)
        idle = (each for each in others if isinstance(each, Connection) and each.idle)
        next(idle, self).transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP as everything else is answered."""
        identity = secrets.token_hex(8)
        log("malformed request", request=identity, status=400)
        message = "not a valid HTTP/1.1 request, or its headers are larger than 16 KiB"
        content = json.dumps({"error": message, "request": identity}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"x-request-id", identity.encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=content),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
