"""A small object server on 127.0.0.1, by HTTP and in the manner of S3, that fails as it is told."""

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Fault:
    """What happens instead of an answer."""

    status: int = 0  # of an answer without a body; 0 for the right one
    headers: dict[str, str] = field(default_factory=dict)  # of that answer
    reset: bool = False  # the connection is reset before anything is said
    stall: bool = False  # nothing is said until the test ends; after half of the body, if `half`
    half: bool = False  # the connection ends after half of the body


Disturb = Callable[[str, str], Fault | None]


@dataclass
class Objects:
    """The objects that the server has, how it fails, and what it was asked."""

    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)  # by path, `bucket/name`
    disturb: Disturb = lambda method, path: None  # takes method and path, and returns the fault
    requests: list[tuple[str, str]] = field(default_factory=list)  # method and path of each
    ranges: bool = True  # whether parts of objects may be asked for
    sent: int = 0  # bytes of bodies
    signed: list[str] = field(default_factory=list)  # the header Authorization of each request
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def forget(self) -> None:
        self.requests.clear()
        self.signed.clear()
        self.sent = 0

    def anew(self, objects: dict[str, bytes]) -> None:
        """Have other objects, and fail no more."""
        self.over.set()
        self.over = threading.Event()
        self.objects, self.disturb, self.ranges = objects, lambda method, path: None, True
        self.forget()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    had: Objects

    def handle_error(self, *about: Any) -> None:
        """Say nothing: clients that give up are what is tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *about: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        had, parts = self.server.had, urlsplit(self.path)
        path = unquote(parts.path).strip("/")
        had.requests.append((self.command, path))
        had.signed.append(self.headers.get("Authorization", ""))
        fault = had.disturb(self.command, path) or Fault()
        if fault.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif fault.stall and not fault.half:
            had.over.wait()
            self.close_connection = True
        elif fault.status:
            self.answer(fault.status, b"", fault.headers)
        elif "list-type" in parse_qs(parts.query):
            self.answer(200, self.listing(path, parse_qs(parts.query)), {})
        elif path not in had.objects:
            self.answer(404, b"", {})
        else:
            self.give(had.objects[path], fault)

    def give(self, whole: bytes, fault: Fault) -> None:
        headers = {"ETag": f'"{md5(whole).hexdigest()}"', "Accept-Ranges": "bytes"}
        status, body = 200, whole
        asked = self.headers.get("Range", "") if self.server.had.ranges else ""
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", asked):
            first, last = int(found[1]), min(int(found[2] or len(whole)), len(whole) - 1)
            if first >= len(whole):
                return self.answer(416, b"", {})
            status, body = 206, whole[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{last}/{len(whole)}"
        return self.answer(status, body, headers, fault)

    def answer(
        self, status: int, body: bytes, headers: dict[str, str], fault: Fault | None = None
    ) -> None:
        fault, had = fault or Fault(), self.server.had
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = body[: len(body) // 2] if fault.half else body
        with suppress(OSError):
            self.wfile.write(body)
            self.wfile.flush()
        had.sent += len(body)
        if fault.stall:
            had.over.wait()
        self.close_connection = self.close_connection or fault.half

    def listing(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        names = [name.removeprefix(f"{bucket}/") for name in sorted(self.server.had.objects)]
        entries = "".join(
            f"<Contents><Key>{name}</Key><Size>{len(self.server.had.objects[f'{bucket}/{name}'])}"
            "</Size><LastModified>2026-11-25T00:00:00.000Z</LastModified></Contents>"
            for name in names
            if name.startswith(prefix)
        )
        space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        return (
            f"<ListBucketResult {space}><Name>{bucket}</Name><IsTruncated>false</IsTruncated>"
            f"{entries}</ListBucketResult>"
        ).encode()


@contextmanager
def served(objects: dict[str, bytes] | None = None) -> Iterator[Objects]:
    """Serve objects from threads of this process."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.had = had = Objects(server.server_address[1], dict(objects or {}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield had
    finally:
        had.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
