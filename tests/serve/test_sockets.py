"""What only a real socket can do: slow and broken senders, lies about lengths, floods."""

import socket
import time
from typing import Any

import pytest

from serve.fakes import FakeEngine, png
from serve.sockets import head, served, status, talk
from vitlab.serve.http.connection import Connection
from vitlab.serve.limits import Limits

IMAGE = png()
MEBI = 2**20
CHUNK = b"%x\r\n%s\r\n" % (len(IMAGE), IMAGE)
LENGTH, CHUNKED = head(Content_Length=len(IMAGE)), head(Transfer_Encoding="chunked")
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)  # of TLS


def alive(port: int) -> int:
    return status(talk(port, [head("GET", "/health", Connection="close")]))


def test_bodies_that_lie_or_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "patience", 1.0)
    engine = FakeEngine(limits=Limits(patience=1.0, max_body=0.25))
    large = b"x" * MEBI
    cases: dict[str, tuple[list[bytes], dict[str, Any], tuple[int, ...]]] = {
        "whole": ([LENGTH + IMAGE], {}, (200,)),
        "in pieces": ([LENGTH, IMAGE[:9], IMAGE[9:]], {"pause": 0.02}, (200,)),
        "chunked": ([CHUNKED + CHUNK + b"0\r\n\r\n"], {}, (200,)),
        "chunked for ever": ([CHUNKED, *[CHUNK] * 9], {"pause": 0.15}, (408,)),
        "chunked and large": (
            [CHUNKED, b"%x\r\n" % MEBI, large], {}, (413,),
        ),
        "not a chunk": ([CHUNKED + b"zz\r\n\r\n"], {}, (400,)),
        "declared large": ([head(Content_Length=99 * MEBI), large], {}, (413,)),
        "declared huge": ([head(Content_Length="9" * 30), large], {}, (400, 413)),
        "negative": ([head(Content_Length=-5) + IMAGE], {}, (400,)),
        "too short": ([head(Content_Length=5) + IMAGE], {}, (422,)),
        "too long, then silence": ([head(Content_Length=len(IMAGE) + 9) + IMAGE], {}, (408,)),
        "too long, then the end": (
            [head(Content_Length=len(IMAGE) + 9) + IMAGE], {"end": True}, (0, 400, 408),
        ),
        "two lengths": ([head(Content_Length="5\r\nContent-Length: 6") + IMAGE], {}, (400,)),
        "length and chunks": (
            [head(Content_Length=4, Transfer_Encoding="chunked") + CHUNK + b"0\r\n\r\n"],
            {}, (200, 400),
        ),
        "slow body": ([head(Content_Length=99), *[b"x"] * 9], {"pause": 0.15}, (408,)),
        "slow headers": ([head()[:-2], *[b"X: y\r\n"] * 12], {"pause": 0.15}, (0,)),
        "no request": ([b""], {}, (0,)),
        "half a word": ([b"GE"], {}, (0,)),
        "TLS": ([HELLO], {}, (400,)),
        "HTTP/2": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], {}, (400, 404)),
        "huge header": ([head("GET", X="x" * MEBI)], {}, (400, 431)),
        "large header": ([head("GET", X="x" * 17_000)], {}, (400, 431)),
        "long address": ([head("GET", "/" + "x" * 17_000)], {}, (400, 414)),
        "web socket": (
            [head("GET", "/health", Connection="Upgrade", Upgrade="websocket")], {}, (200, 400),
        ),
        "continue": (
            [head(Content_Length=len(IMAGE), Expect="100-continue"), IMAGE],
            {"pause": 0.05}, (100,),
        ),
        "continue, large": ([head(Content_Length=MEBI, Expect="100-continue")], {}, (413,)),
    }  # fmt: skip

    def script(port: int) -> dict[str, tuple[int, float]]:
        found = {}
        for name, (pieces, options, _) in cases.items():
            began = time.monotonic()
            found[name] = (status(talk(port, pieces, **options)), time.monotonic() - began)
            assert alive(port) == 200, name
        return found

    found, service = served(script, engine)
    assert {
        name: found[name][0] for name, case in cases.items() if found[name][0] not in case[2]
    } == {}
    assert max(seconds for _, seconds in found.values()) < 10
    assert service.app.state.desk.held.bytes == 0


def test_a_crowd_of_idle_connections_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "most", 8)

    def script(port: int) -> list[int]:
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        found = [alive(port) for _ in range(3)]
        for each in crowd:
            each.close()
        return found

    assert served(script)[0] == [200, 200, 200]


def test_bodies_share_a_bounded_memory() -> None:
    """Slow senders hold what they sent; a third one is told to come again."""
    engine = FakeEngine(limits=Limits(max_body=0.5, max_memory=1.0, patience=5))
    half = b"x" * (MEBI // 2 - 100)

    def script(port: int) -> int:
        crowd = []
        for _ in range(2):
            crowd.append(socket.create_connection(("127.0.0.1", port)))
            crowd[-1].sendall(head(Content_Length=len(half) + 50) + half)
        for _ in range(100):
            time.sleep(0.02)
            if status(talk(port, [head(Content_Length=len(half)) + half])) == 503:
                break
        else:
            return 0
        for each in crowd:
            each.close()
        time.sleep(0.1)
        return status(talk(port, [head(Content_Length=len(IMAGE)) + IMAGE]))

    found, service = served(script, engine)
    assert found == 200
    assert service.app.state.desk.held.bytes == 0


def test_a_refused_client_sees_the_answer_and_then_the_end() -> None:
    """A connection that is closed with unread bytes would be reset."""
    large = bytes(3 * MEBI)

    def script(port: int) -> bytes:
        found = b""
        with socket.create_connection(("127.0.0.1", port), timeout=5) as opened:
            opened.sendall(head(path="/predict?model=ghost", Content_Length=len(large)) + large)
            while chunk := opened.recv(65536):  # a reset would be an error
                found += chunk
        return found

    assert status(served(script)[0]) == 404
