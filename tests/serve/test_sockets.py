"""What only a real socket can do: slow and broken senders, lies about lengths, floods."""

import asyncio
import math
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from serve.fakes import FakeEngine, png
from serve.made import figure
from serve.sockets import head, read, served, status, talk
from steady import PATIENCE, wait_until
from vitlab.serve.limits import Limits
from vitlab.serve.overload import rest_of

IMAGE = png()
MEBI = 2**20
LARGE = b"x" * MEBI
CHUNK = b"%x\r\n%s\r\n" % (len(IMAGE), IMAGE)
END = b"0\r\n\r\n"
SMUGGLED = b"GET /models HTTP/1.1\r\nHost: localhost\r\n\r\n"
LENGTH, CHUNKED = head(Content_Length=len(IMAGE)), head(Transfer_Encoding="chunked")
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)  # of TLS


def alive(port: int) -> int:
    return status(talk(port, [head("GET", "/health", Connection="close")]))


SLOWLY = {"pause": 0.05, "on": True}  # for as long as the service waits
# Each case: the pieces that are sent, how, and the statuses that may be answered (0: none).
CASES: dict[str, tuple[list[bytes], dict[str, Any], tuple[int, ...]]] = {
    "whole": ([LENGTH + IMAGE], {}, (200,)),
    "in pieces": ([LENGTH, IMAGE[:9], IMAGE[9:]], {"pause": 0.02}, (200,)),
    "chunked": ([CHUNKED + CHUNK + END], {}, (200,)),
    "HTTP/1.0": ([LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0") + IMAGE], {}, (200,)),
    "two requests at once": ([(LENGTH + IMAGE) * 2], {}, (200,)),
    "chunked for ever": ([CHUNKED, CHUNK], SLOWLY, (408,)),
    "chunked and large": ([CHUNKED, b"%x\r\n" % MEBI, LARGE], {}, (413,)),
    "not a chunk": ([CHUNKED + b"zz\r\n\r\n"], {}, (400,)),
    "negative chunk": ([CHUNKED + b"-1\r\n\r\n"], {}, (400,)),
    "huge chunk": ([CHUNKED + b"f" * 30 + b"\r\n"], {}, (400, 413)),
    "declared large": ([head(Content_Length=99 * MEBI), LARGE], {}, (413,)),
    "declared huge": ([head(Content_Length="9" * 30), LARGE], {}, (400, 413)),
    "negative": ([head(Content_Length=-5) + IMAGE], {}, (400,)),
    "plus": ([head(Content_Length="+5") + IMAGE], {}, (400,)),
    "too short": ([head(Content_Length=5) + IMAGE], {}, (422,)),
    "too long, then silence": ([head(Content_Length=len(IMAGE) + 9) + IMAGE], {}, (408,)),
    "too long, then the end": (
        [head(Content_Length=len(IMAGE) + 9) + IMAGE], {"end": True}, (0, 400, 408),
    ),
    "two lengths": ([head(Content_Length="5\r\nContent-Length: 6") + IMAGE], {}, (400,)),
    "length and chunks": (
        [head(Content_Length=4, Transfer_Encoding="chunked") + CHUNK + END], {}, (200, 400),
    ),
    "smuggled in a length": (
        [head(Content_Length=0, Transfer_Encoding="chunked") + END + SMUGGLED], {}, (400, 422),
    ),
    "smuggled by a space": ([head(Transfer_Encoding=" chunked ") + END + SMUGGLED], {}, (400,)),
    "smuggled by another coding": (
        [head(Transfer_Encoding="gzip, chunked") + END + SMUGGLED], {}, (400, 501),
    ),
    "slow body": ([head(Content_Length=MEBI // 8), b"x"], SLOWLY, (408,)),
    "TLS": ([HELLO], {}, (400,)),
    "HTTP/2": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], {}, (400, 404)),
    "no HTTP": ([b"\0\r\n\r\n"], {}, (400,)),
    "NUL in a header": ([head("GET", "/health", X="a\0b")], {}, (400,)),
    "NUL in an address": ([head("GET", "/\0")], {}, (400, 404)),
    "a header in two lines": ([head("GET", "/health", X="a\r\n b")], {}, (200, 400)),
    "a space before the colon": ([head("GET", "/health")[:-2] + b"X : y\r\n\r\n"], {}, (400,)),
    "two hosts": ([head("GET", "/health", Host="evil.example")], {}, (400,)),
    "no host": ([b"GET /health HTTP/1.1\r\n\r\n"], {}, (400,)),
    "huge header": ([head("GET", X="x" * MEBI)], {}, (400, 431)),
    "large header": ([head("GET", X="x" * 17_000)], {}, (400, 431)),
    "many headers": ([head("GET", **{f"X{n}": n for n in range(5000)})], {}, (400, 431)),
    "long address": ([head("GET", "/" + "x" * 17_000)], {}, (400, 414)),
    "address of another host": ([head("GET", "http://evil.example/health")], {}, (200, 400, 404)),
    "out of the folder": ([head("GET", "/page/../../../../etc/passwd")], {}, (404,)),
    "out of the folder, hidden": ([head("GET", "/page/%2e%2e%2f%2e%2e%2fapp.py")], {}, (404,)),
    "unknown method": ([head("BREW", "/health")], {}, (405,)),
    "tunnel": ([head("CONNECT", "evil.example:443")], {}, (400, 404, 405)),
    "web socket": (
        [head("GET", "/health", Connection="Upgrade", Upgrade="websocket")], {}, (200, 400),
    ),
    "continue": (
        [head(Content_Length=len(IMAGE), Expect="100-continue"), IMAGE], {"pause": 0.05}, (100,),
    ),
    "continue, large": ([head(Content_Length=MEBI, Expect="100-continue")], {}, (413,)),
}  # fmt: skip


def test_hostile_bytes_are_refused_and_the_next_client_is_answered() -> None:
    late = [name for name, case in CASES.items() if case[2] == (408,)]
    for names, patience in ((late, 0.5), (CASES.keys() - late, PATIENCE)):
        engine = FakeEngine(limits=Limits(patience=patience, max_body=0.25))

        def answer(port: int, name: str) -> int:
            pieces, options, _ = CASES[name]
            found = status(talk(port, pieces, **options))
            assert alive(port) == 200, name
            return found

        def script(port: int, names: Sequence[str] = sorted(names)) -> dict[str, int]:
            with ThreadPoolExecutor(8) as pool:
                return dict(zip(names, pool.map(partial(answer, port), names), strict=True))

        found, service = served(script, engine)
        assert {name: found[name] for name in names if found[name] not in CASES[name][2]} == {}
        assert service.app.state.serving.under_way == figure(engine, "body_bytes") == 0


def test_a_client_that_closes_its_sending_side_has_left() -> None:
    """TCP shows no difference between both: nothing is computed for them, and nothing fails."""
    engine = FakeEngine(gate=asyncio.Event())  # no answer ever comes
    found, service = served(
        lambda port: (talk(port, [LENGTH + IMAGE], end=True), alive(port)), engine
    )
    assert found == (b"", 200)
    assert len(engine.asked) == 1
    assert service.app.state.serving.under_way == 0
    labels = {"route": "/predict", "method": "POST"}
    count = "request_seconds_count"
    assert figure(engine, count, status="499", **labels) == 1
    assert figure(engine, count, status="503", **labels) == 0


def test_a_connection_without_a_whole_head_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.serve.service.KEEP_ALIVE", 0.2)
    silent: list[list[bytes]] = [[], [b"GET /hea"], [b"G", b"E", b"T", *[b" "] * 9]]

    def script(port: int) -> tuple[list[bytes], int]:
        found = [talk(port, pieces, pause=0.1) for pieces in silent]
        return found, wait_until(lambda: alive(port))  # a whole head may be late, too

    assert served(script)[0] == ([b""] * 3, 200)


def test_bodies_share_a_bounded_memory() -> None:
    """Slow senders hold what they sent; a third one is told to come again."""
    engine = FakeEngine(limits=Limits(max_body=0.5, max_memory=1.0, patience=PATIENCE))
    half = b"x" * (MEBI // 2 - 100)

    def script(port: int) -> list[int]:
        crowd = []
        for _ in range(2):
            crowd.append(socket.create_connection(("127.0.0.1", port)))
            crowd[-1].sendall(head(Content_Length=len(half) + 50) + half)
        wait_until(lambda: figure(engine, "body_bytes") == 2 * len(half))
        found = [status(talk(port, [head(Content_Length=len(half)) + half]))]
        for each in crowd:
            each.close()
        wait_until(lambda: figure(engine, "body_bytes") == 0)
        return [*found, status(talk(port, [LENGTH + IMAGE]))]

    found, service = served(script, engine)
    assert found == [503, 200]
    assert service.app.state.serving.under_way == figure(engine, "body_bytes") == 0


def test_a_refused_client_sees_the_answer_and_then_the_end() -> None:
    """A connection that is closed with unread bytes would be reset."""
    large = bytes(3 * MEBI)

    def script(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as opened:
            opened.sendall(head(path="/predict?model=ghost", Content_Length=len(large)) + large)
            found = read(opened)
            opened.sendall(head("GET", "/health", Connection="close"))
            return found + read(opened)

    first, second = served(script)[0].split(b"HTTP/1.1 ")[1:]
    assert (first[:3], second[:3]) == (b"404", b"200")  # the connection has stayed


def test_what_has_no_room_is_refused_unread_and_watchers_are_answered() -> None:
    engine, large = FakeEngine(), bytes(3 * MEBI)

    def script(port: int) -> list[bytes]:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as opened:
            opened.sendall(LENGTH + IMAGE[:9])
            wait_until(lambda: engine.checked == 1)
            engine.crowd = 2.5
            opened.sendall(IMAGE[9:])  # of a request that had begun
            found = [read(opened)]
            opened.sendall(head("GET", "/health"))
            found.append(read(opened))
            for _ in range(2):
                opened.sendall(head(Content_Length=len(large)) + large)
                found.append(read(opened))
            engine.crowd = 0.0  # what was refused has been skipped
            opened.sendall(LENGTH + IMAGE)
            found.append(read(opened))
            engine.crowd = 2.5
            opened.sendall(CHUNKED + CHUNK)
            found.append(read(opened))
            assert opened.recv(1) == b""  # the end of the connection
        return found

    found, _ = served(script, engine)
    assert [status(each) for each in found] == [200, 200, 503, 503, 200, 503]
    for each, connection in zip(found[2:], ("keep-alive", "keep-alive", "", "close"), strict=True):
        lines = each.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        assert ("Retry-After: 3" in lines) is bool(connection)
        assert (f"Connection: {connection}" in lines) is bool(connection)
    assert "X-Content-Type-Options: nosniff" in lines
    assert len(engine.asked) == 2
    assert figure(engine, "images_shed_total", model="") == 3


def test_only_a_plain_length_of_a_refused_request_is_believed() -> None:
    """With any doubt, the refusal ends the connection: no request can hide in another one."""
    line, body = "POST / HTTP/1.1", "\r\n\r\n123"
    for fields, rest in {
        "\r\nContent-Length: 9": 6,
        "\r\nHost: a\r\ncontent-length:3": 0,
        "\r\nContent-Length: 2": math.inf,  # and another request behind it
        "": math.inf,
        "\r\nContent-Length: 9\r\nContent-Length: 9": math.inf,
        "\nContent-Length: 5\r\nContent-Length: 9": math.inf,
        "\r\nX: Content-Length: 9": math.inf,
        "\r\nContent-Length: +9": math.inf,
        "\r\nContent-Length: 9, 9": math.inf,
        "\r\nContent-Length: 9\r\nTransfer-Encoding: chunked": math.inf,
        "\r\nContent-Length: 9\r\nExpect: 100-continue": math.inf,
        "\r\nContent-Length: 9\r\nConnection: close": math.inf,
    }.items():
        assert rest_of((line + fields + body).encode()) == rest, fields
    assert rest_of(b"POST / HTTP/1.0\r\nContent-Length: 9" + body.encode()) == math.inf
    assert rest_of(b"POST / HTTP/1.1\r\nContent-Len") == math.inf


def test_slow_bodies_take_no_place_of_others() -> None:
    """More of them than there are places: after a second the others are answered again."""

    class Counting(FakeEngine):
        def crowded(self, under_way: int) -> float:
            return 1.0 if under_way >= 4 else 0.0

    engine = Counting(limits=Limits(patience=PATIENCE))

    def script(port: int) -> tuple[int, list[int]]:
        place = ("127.0.0.1", port)
        slow = [socket.create_connection(place, timeout=PATIENCE) for _ in range(4)]
        for each in slow:
            each.sendall(LENGTH + IMAGE[:9])
        found = wait_until(lambda: status(talk(port, [LENGTH + IMAGE])) == 200)
        for each in slow:
            each.sendall(IMAGE[9:])
        answers = [status(read(each)) for each in slow]
        for each in slow:
            each.close()
        return found, answers

    found, service = served(script, engine)
    assert found == (True, [200] * 4)
    assert service.app.state.serving.slow == 0
