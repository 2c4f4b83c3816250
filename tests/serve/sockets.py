"""A service on a real socket, in this process: scripts talk to it from a thread."""

import asyncio
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from serve.fakes import FakeEngine
from steady import PATIENCE
from vitlab.serve.access import listen
from vitlab.serve.app import application
from vitlab.serve.service import Service


def served(
    script: Callable[[int], Any] | None,
    engine: FakeEngine | None = None,
    drain: float = PATIENCE,
) -> tuple[Any, Service]:
    """Run a script with the port of a service, then end the service with SIGTERM.

    A script may end it itself; what it returns is returned. Without one it ends by itself.
    """
    engine = engine or FakeEngine()
    service = Service(application(engine), engine, drain)
    opened, results = listen("127.0.0.1", 0), list[Any]()
    port, ended = opened.getsockname()[1], threading.Event()

    def run() -> None:
        try:
            results.append(script(port) if script is not None else None)
        except BaseException as error:  # shown by the test itself
            results.append(error)
        finally:
            if not (service.signal or script is None or ended.is_set()):  # nobody else handles it
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        asyncio.run(asyncio.wait_for(service.run(opened), PATIENCE))
    finally:
        ended.set()
    thread.join(PATIENCE)
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0], service


def head(method: str = "POST", path: str = "/predict", **headers: object) -> bytes:
    """The first lines of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def talk(
    port: int, pieces: Sequence[bytes], pause: float = 0, end: bool = False, on: bool = False
) -> bytes:
    """Send pieces with pauses, and return everything that comes back before the end.

    A client that is cut off while it sends still reads. `end` says that nothing more will come;
    one that goes `on` sends its last piece again and again until something comes back.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as opened:
        try:
            for piece in pieces:
                opened.sendall(piece)
                time.sleep(pause)
            while on and not select.select([opened], [], [], pause)[0]:
                opened.sendall(piece)
            if end:
                opened.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return read(opened)


def refuses(port: int) -> bool:
    """Whether nobody listens any more."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except OSError:
        return True
    return False


def read(opened: socket.socket) -> bytes:
    """Everything that comes until the other side closes, or an answer is complete."""
    found = b""
    try:
        while chunk := opened.recv(65536):
            found += chunk
            if complete(found):
                break
    except OSError:
        pass
    return found


def complete(answer: bytes) -> bool:
    """Whether an answer has all of its body."""
    top, mark, body = answer.partition(b"\r\n\r\n")
    if top.startswith(b"HTTP/1.1 100"):
        return bool(body) and complete(body)
    lengths = [line for line in top.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(mark and lengths) and len(body) >= int(lengths[0].split(b":")[1])


def status(answer: bytes) -> int:
    """The status of an answer whose body is what all errors have; 0 for none.

    Only what is not HTTP at all is refused by the server itself, in plain text.
    """
    if not answer:
        return 0
    number = int(answer.split(b" ", 2)[1])
    if number >= 400 and b"Invalid HTTP request received." not in answer:
        body = answer.partition(b"\r\n\r\n")[2].decode()
        content, _ = json.JSONDecoder().raw_decode(body)  # another answer may follow
        assert set(content) == {"error", "request"}
    return number
