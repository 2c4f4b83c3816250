"""A light HTTP client that asks as fast, or as often, as it is told, and keeps every outcome.

Requests are bytes made before the clock starts; answers are read by a parser of a few lines. One
asyncio loop, no other library: the client must not take the processor from the server it measures.
"""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LATE, BROKEN = 0, -1  # in place of a status: no answer in time, no whole answer
STEP = 0.1  # seconds between two probes


@dataclass(frozen=True)
class Outcome:
    """What came of a request.

    Attributes:
        number: of the body that was sent
        start: seconds since the traffic began
        seconds: until the answer was complete, or until it was given up
        status: of HTTP, or `LATE` or `BROKEN`
        body: of the answer
    """

    number: int
    start: float
    seconds: float
    status: int
    body: bytes


@dataclass
class Traffic:
    """Everything that happened.

    Attributes:
        outcomes: one per request
        probes: the same of a GET beside them, a few per second
        wall: seconds from the first request to the last answer
        cpu: seconds of processor time that the client took
        lag: the most seconds by which a request was sent later than planned
        surplus: answers that nobody had asked for
    """

    outcomes: list[Outcome] = field(default_factory=list)
    probes: list[Outcome] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0
    lag: float = 0.0
    surplus: int = 0

    @property
    def statuses(self) -> Counter[int]:
        """How many requests had each status."""
        return Counter(each.status for each in self.outcomes)

    def times(self, *statuses: int) -> list[float]:
        """Return the sorted seconds of the requests with one of these statuses."""
        return sorted(each.seconds for each in self.outcomes if each.status in statuses)


def percentile(times: Sequence[float], percent: float) -> float | None:
    """Return the smallest of sorted times that at least so many percent do not exceed."""
    return times[max(0, math.ceil(percent * len(times) / 100) - 1)] if times else None


class Link(asyncio.Protocol):
    """A connection that carries one request at a time.

    Attributes:
        surplus: answers that nobody had asked for
        usable: whether it is open, and has no request under way
    """

    def __init__(self) -> None:
        self.surplus, self.usable = 0, True
        self._buffer = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request under way."""
        self.usable = False
        self._end(BROKEN, b"")

    def data_received(self, data: bytes) -> None:
        """Read every answer that is whole."""
        self._buffer += data
        while True:
            head, gap, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            lines = [line.lower() for line in head.split(b"\r\n")]
            sizes = [line.split(b":")[1] for line in lines if line.startswith(b"content-length:")]
            length = int(sizes[0]) if sizes else 0
            if not gap or len(rest) < length:
                return
            self._buffer = bytearray(rest[length:])
            if (status := int(lines[0].split()[1])) == 100:
                continue
            self.surplus += self._answer is None
            if b"connection: close" in lines:
                self.close()
            self._end(status, rest[:length])

    async def ask(self, request: bytes, patience: float) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of its answer."""
        assert self._transport is not None
        self.usable = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(patience):  # wait_for may swallow a cancellation
                return await self._answer
        except TimeoutError:
            self._answer = None
            self.close()
            return LATE, b""

    def close(self) -> None:
        """Close it; what was not sent is dropped."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, status: int, body: bytes) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            self.usable = self._transport is not None and not self._transport.is_closing()
            answer.set_result((status, body))


class Pool:
    """Connections to one port of this machine, opened as they are needed."""

    def __init__(self, port: int, patience: float) -> None:
        self.port, self.patience, self.traffic = port, patience, Traffic()
        self._links: list[Link] = []
        self._idle: list[Link] = []
        self.began = time.perf_counter()

    async def ask(self, number: int, request: bytes) -> Outcome:
        """Send a request on an idle connection or a new one."""
        start = time.perf_counter()
        try:
            link = await self._link()
        except OSError:
            status, body = BROKEN, b""
        else:
            status, body = await link.ask(request, self.patience)
            if link.usable:
                self._idle.append(link)
        now = time.perf_counter()
        return Outcome(number, start - self.began, now - start, status, body)

    def close(self) -> None:
        """Close all connections, and count what they were sent beyond what was asked."""
        for link in self._links:
            self.traffic.surplus += link.surplus
            link.close()

    async def _link(self) -> Link:
        while self._idle:
            link = self._idle.pop()
            if link.usable:
                return link
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(Link, "127.0.0.1", self.port)
        self._links.append(link)
        return link


async def saturate(pool: Pool, requests: Sequence[bytes], at_once: int, seconds: float) -> None:
    """Keep so many requests under way (a closed loop)."""
    until = time.perf_counter() + seconds

    async def one(first: int) -> None:
        number = first
        while time.perf_counter() < until:
            outcome = await pool.ask(number % len(requests), requests[number % len(requests)])
            pool.traffic.outcomes.append(outcome)
            number += at_once
            if outcome.status == BROKEN:
                await asyncio.sleep(STEP)  # a server that is gone is not asked in a tight loop

    await asyncio.gather(*(one(number) for number in range(at_once)))


async def arrive(
    pool: Pool, requests: Sequence[bytes], rate: float, seconds: float, seed: int
) -> None:
    """Send requests at random times, whether or not the earlier ones are answered (open loop).

    Args:
        pool: connections
        requests: sent in turn
        rate: requests per second, of a Poisson process
        seconds: in which they are sent; then all answers are awaited
        seed: of the times
    """
    generator, start = random.Random(seed), time.perf_counter()
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        pool.traffic.outcomes.append(await pool.ask(number, requests[number]))

    due, count = start + generator.expovariate(rate), 0
    while due < start + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        pool.traffic.lag = max(pool.traffic.lag, time.perf_counter() - due)
        task = asyncio.create_task(one(count % len(requests)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due, count = due + generator.expovariate(rate), count + 1
    await asyncio.gather(*tasks)


async def probe(pool: Pool, request: bytes, watch: Callable[[float], None]) -> None:
    """Send a small request all the time, one after the other, until it is cancelled."""
    while True:
        pool.traffic.probes.append(await pool.ask(0, request))
        watch(time.perf_counter() - pool.began)
        await asyncio.sleep(STEP)


async def run(
    port: int,
    load: Callable[[Pool], "asyncio.Future[None]"],
    *,
    patience: float,
    probing: bytes,
    watch: Callable[[float], None] = lambda seconds: None,
) -> Traffic:
    """Run one kind of load beside a probe, and return what happened.

    Args:
        port: of the server, on this machine
        load: `saturate` or `arrive`, given the connections
        patience: seconds after which a request is given up
        probing: a request that is sent a few times per second, as a health check is
        watch: called as often with the seconds since the start
    """
    pool, beside = Pool(port, patience), Pool(port, patience)
    cpu, start = time.process_time(), time.perf_counter()
    pool.began = beside.began = start
    probing_task = asyncio.ensure_future(probe(beside, probing, watch))
    try:
        await load(pool)
    finally:
        probing_task.cancel()
        await asyncio.gather(probing_task, return_exceptions=True)
        pool.close()
        beside.close()
    traffic = pool.traffic
    traffic.probes = beside.traffic.probes
    traffic.wall, traffic.cpu = time.perf_counter() - start, time.process_time() - cpu
    return traffic
