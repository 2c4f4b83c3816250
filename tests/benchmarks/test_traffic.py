"""The client that measures services counts everything that happens to its requests, once."""

import asyncio
import importlib
import itertools
import json
from email import message_from_bytes
from typing import Any

import pytest

from docs.pages import ROOT, script
from serve.made import until
from steady import PATIENCE

pytestmark = pytest.mark.benchmarks

PROBE = b"GET /health HTTP/1.1\r\n\r\n"
ASK = b"POST /%d HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = script("serve")  # `serve` is a folder of tests
    return importlib.import_module("traffic"), program


def answer(status: int, body: bytes = b"{}", extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n%b" % (status, extra, len(body), body)


class Fake(asyncio.Protocol):
    """Answers by the number in the path: 1 refuses, 2 hangs up, 3 is silent, 4 answers twice.

    Attributes:
        probes: requests beside the load
        open: connections
    """

    probes = open = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        Fake.open += 1

    def connection_lost(self, error: Exception | None) -> None:
        Fake.open -= 1

    def data_received(self, data: bytes) -> None:
        path = data.split()[1]
        assert path == b"/health" or data.endswith(b"hi")
        Fake.probes += path == b"/health"
        if path == b"/2":
            self.transport.close()
        elif path != b"/3":
            close = answer(503, extra=b"Connection: close\r\n")
            whole = {b"/1": close, b"/4": 2 * answer(200)}.get(path, answer(200, b"right"))
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n" + whole[:20])
            asyncio.get_running_loop().call_later(0.01, self.transport.write, whole[20:])


def traffic_of(tools: Any, numbers: list[int], load: Any) -> Any:
    """Put a load on `Fake`, with more patience than a busy machine exhausts."""

    async def probed(pool: Any, asks: list[bytes]) -> None:
        await load(pool, asks)
        goal = Fake.probes + 2  # the first of them is sent when the one before was answered
        await until(lambda: Fake.probes >= goal)

    async def main() -> Any:
        server = await asyncio.get_running_loop().create_server(Fake, "127.0.0.1", 0)
        port, asks = server.sockets[0].getsockname()[1], [ASK % n for n in numbers]
        async with server:
            loaded = tools[0].run(
                port, lambda pool: probed(pool, asks), patience=PATIENCE, probing=PROBE
            )
            done = await loaded
            await until(lambda: not Fake.open)
        return done

    return asyncio.run(main())


def test_every_request_has_one_outcome(tools: Any) -> None:
    traffic = tools[0]
    numbers = [0, 1, 2, 3, 4, 5]

    async def load(pool: Any, requests: list[bytes]) -> None:
        for number, request in enumerate(requests):
            pool.patience = 0.3 if number == 3 else PATIENCE
            pool.traffic.outcomes.append(await pool.ask(number, request))

    done = traffic_of(tools, numbers, load)
    assert [each.status for each in done.outcomes] == [
        200, 503, traffic.BROKEN, traffic.LATE, 200, 200
    ]  # fmt: skip
    assert done.surplus == 1
    assert [each.body for each in done.outcomes if each.number in (0, 5)] == [b"right"] * 2
    assert done.statuses == {200: 3, 503: 1, traffic.BROKEN: 1, traffic.LATE: 1}
    assert {each.status for each in done.probes} == {200}


def test_loads_send_what_they_plan(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = tools[0]
    looks = itertools.count()
    with monkeypatch.context() as patch:  # 0.2 s are 20 looks at this clock
        patch.setattr(traffic.time, "perf_counter", lambda: next(looks) / 100)
        closed = traffic_of(tools, [0, 1], lambda pool, asks: traffic.saturate(pool, asks, 3, 0.2))
    assert set(closed.statuses) == {200, 503}
    counts = []
    for seed in (1, 1, 2):
        done = traffic_of(
            tools, [0], lambda pool, asks, seed=seed: traffic.arrive(pool, asks, 300, 0.2, seed)
        )
        assert set(done.statuses) == {200}
        counts.append(len(done.outcomes))
    assert counts[0] == counts[1]
    assert 30 < counts[0] < 90  # 60 on average, whatever the machine does


def test_percentiles_are_of_the_nearest_rank(tools: Any) -> None:
    percentile = tools[0].percentile
    assert percentile([], 50) is None
    assert [percentile([1, 2, 3, 4], p) for p in (1, 25, 26, 50, 99, 100)] == [1, 1, 2, 2, 4, 4]
    assert percentile(list(range(1, 281)), 99) == 278


def test_requests_and_answers_of_the_servers(tools: Any) -> None:
    serve = tools[1]
    head, _, body = serve.form(b"JPEG\r\n\0bytes").partition(b"\r\n\r\n")
    fields = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
    assert int(fields[b"Content-Length"]) == len(body)
    form = message_from_bytes(b"Content-Type: " + fields[b"Content-Type"] + b"\r\n\r\n" + body)
    (part,) = form.get_payload()
    assert part.get_payload(decode=True) == b"JPEG\r\n\0bytes"
    best = {"top": [{"class": "a", "probability": 0.5}]}
    for content in (best, {"predictions": [best]}):
        assert serve.top_of(json.dumps(content).encode()) == ("a", 0.5)
    for wrong in (b"", b"[]", b'{"predictions": [{"error": "x"}]}'):
        assert serve.top_of(wrong) is None


def test_the_table_has_a_column_per_server(tools: Any) -> None:
    serve = tools[1]
    over = dict.fromkeys(("p50", "p99", "refused p50", "refused p99", "health p50", "health p99"))
    over |= {"p99": 0.25, "goodput": 9, "statuses": {200: 5, 503: 7}, "requests": 12}
    over |= {"unanswered": 0, "wrong": 0, "memory": [(0, 500), (60, 501)], "client share": 0.1}
    one = {"saturation": 9.5, "p50": 0.1, "p99": 0.3, "client share": 0.05, "overload": over}
    text = serve.table({"vitlab": one, "fastapi": one}, {"seconds": 0.2, "rate": 10.0})
    lines = text.splitlines()
    assert lines[0] == "| | vitlab serve | plain FastAPI |"
    assert lines[2].endswith("| 9.5 (95%) | 9.5 (95%) |")
    assert "| 70% load: p50, p99, ms | 100, 300 |" in text
    assert "| refused with 503 | 7 |" in text
    assert "| p50, p99 of the refusals, ms | –, – |" in text
    assert {line.count("|") for line in lines} == {4}
    long = {"soak": over | {"memory": [(0, 500), (30, 510), (61, 520), (600, 521)]}}
    assert serve.soaked(long, 10).endswith("500 MB before, 520 after a tenth, 521 after.")
