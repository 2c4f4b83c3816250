"""Requests to an application without a socket: one event after another, as a server passes them."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

Headers = Iterable[tuple[str, str]]


@dataclass
class Reply:
    """What an application answered, and how many chunks of the request it left unread."""

    status: int
    headers: dict[str, str]
    body: bytes
    left: int = 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The error of a problem, whose form is checked."""
        content = self.json
        assert set(content) == {"error", "request"}
        assert content["request"] == self.headers["x-request-id"]
        assert "\n" not in content["error"]
        return str(content["error"])


async def send(
    app: Any,
    method: str,
    path: str,
    chunks: Sequence[bytes] = (),
    headers: Headers = (),
    *,
    pause: float = 0,
    cut: bool = False,
    leaves: float = 3600,
    last: Callable[[], object] = lambda: None,
) -> Reply:
    """Send a request whose body comes in chunks, with pauses, and perhaps without an end.

    `cut` ends the connection in the middle of the body, `leaves` so many seconds after it; `last`
    is called as the last chunk is handed over.
    """
    parts = urlsplit(path)
    given = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    if not any(name == b"host" for name, _ in given):
        given.append((b"host", b"localhost"))
    if chunks and not any(name == b"content-length" for name, _ in given):
        given.append((b"transfer-encoding", b"chunked"))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": parts.path, "raw_path": quote(parts.path).encode(),
        "query_string": parts.query.encode(), "root_path": "", "headers": given,
        "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    left = list(chunks) or [b""]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        if not left:
            if cut:
                return {"type": "http.disconnect"}
            await asyncio.sleep(leaves)
            return {"type": "http.disconnect"}
        chunk = left.pop(0)
        if not left:
            last()
        return {"type": "http.request", "body": chunk, "more_body": bool(left) or cut}

    async def keep(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, keep)
    body = b"".join(each.get("body", b"") for each in sent[1:])
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]} if sent else {}
    return Reply(sent[0]["status"] if sent else 0, found, body, len(left))


def ask(app: Any, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    """Send one whole request; `content_type` is the header of that name."""
    given = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return asyncio.run(send(app, method, path, [body] if body else [], given))


def form(*files: tuple[str, bytes], boundary: str = "xyz") -> tuple[bytes, str]:
    """A multipart body of files, and its type."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, data in files
    ]
    end = f"--{boundary}--\r\n".encode()
    return b"".join(parts) + end, f"multipart/form-data; boundary={boundary}"
