"""One thread that computes, a batch at a time, from what waits."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from vitlab.errors import ServiceError
from vitlab.serve.computing.answers import Ticket, answers
from vitlab.serve.computing.roster import Served
from vitlab.serve.computing.trunk import Trunk
from vitlab.serve.decoding.decoders import settle
from vitlab.serve.figures import SECONDS, SIZES, Histogram
from vitlab.serve.queueing import Rounds
from vitlab.serve.seen import Seen

LEAVE = 10.0  # seconds
Outcome = tuple[Ticket, Seen | ServiceError]
MEMORY = 0.1  # share of the newest batch in the average seconds of an image


class Batcher:
    """Batches on one device.

    A batch starts as soon as the device is free: while it computes, the next one gathers. Only
    where more images of the same trunk are being decoded just then, it waits for them, up to
    `delay`. Models take turns; images of one trunk's models share a batch.

    Args:
        delay: seconds
    """

    def __init__(self, delay: float) -> None:
        self.sizes, self.seconds = Histogram(SIZES), Histogram(SECONDS)
        self.pace = 0.0  # seconds per image
        self._delay = delay
        self._batch: list[Ticket] = []  # that is computed now
        self._waiting: Rounds[Ticket] = Rounds()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def computing(self) -> int:
        """Images in a model now."""
        return len(self._batch)

    def start(self) -> None:
        """Start the thread; answers are given in the event loop that calls this."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="vitlab-compute", daemon=True)
        self._thread.start()

    async def stop(self, seconds: float = LEAVE) -> None:
        """End the thread after the batch that it computes; the rest is refused.

        Args:
            seconds: that this batch has left; then its requests are refused as well
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, seconds)
        _give([(ticket, _stopping()) for ticket in self._batch])

    @contextmanager
    def coming(self, trunk: Trunk) -> Iterator[None]:
        """In the block, an image is being decoded for a model of a trunk, and may be put."""
        trunk.coming += 1
        try:
            yield
        finally:
            with self._changed:
                trunk.coming -= 1
                self._changed.notify()

    def put(self, ticket: Ticket) -> None:
        """Let an image wait for its batch."""
        with self._changed:
            if self._stopping:
                settle(ticket.future, _stopping())
                return
            self._waiting.push(ticket.served, ticket)
            self._changed.notify()

    def _run(self) -> None:
        while batch := self._next():
            self._batch = batch
            start = time.perf_counter()
            outcomes = _outcomes(batch)
            seconds = time.perf_counter() - start
            self.sizes.add(len(batch))
            self.seconds.add(seconds)
            pace = seconds / len(batch)
            self.pace += (pace - self.pace) * (MEMORY if self.pace else 1)
            self._batch = []
            self._deliver(outcomes)

    def _next(self) -> list[Ticket]:
        """Wait for the next batch; none at the end."""
        with self._changed:
            while True:
                if self._stopping:
                    self._refuse()
                    return []
                firsts = [self._waiting.line(key)[0] for key in self._waiting]
                waits = [self._wait(first) for first in firsts]
                due = [first for first, wait in zip(firsts, waits, strict=True) if wait <= 0]
                if not due:
                    self._changed.wait(min(waits, default=None))
                elif batch := self._taken(due[0].served):
                    return batch

    def _wait(self, first: Ticket) -> float:
        """Return how many seconds a batch waits for more images."""
        trunk = first.served.trunk
        if not trunk.coming:
            return 0.0
        lines = [self._waiting.line(key) for key in self._waiting]
        count = sum(len(line) for line in lines if line[0].served.trunk is trunk)
        if count >= first.served.batch:
            return 0.0
        return first.entered + self._delay - time.monotonic()

    def _taken(self, served: Served) -> list[Ticket]:
        """Take a batch: of a model, and of others of its trunk, an image of each in turn."""
        batch: list[Ticket] = []
        key: Served | None = served
        while key is not None and len(batch) < served.batch:
            ticket = self._waiting.pop(key)
            if key.gone:
                self._deliver([(ticket, _removed(ticket))])
            elif not ticket.future.done():  # else nobody waits for it any more
                batch.append(ticket)
            turns = (self._waiting.line(each)[0].served for each in self._waiting)
            key = next((each for each in turns if each.trunk is served.trunk), None)
        return batch

    def _refuse(self) -> None:
        for key in self._waiting:
            self._deliver([(ticket, _stopping()) for ticket in self._waiting.clear(key)])

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # closed: nobody waits any more
            self._loop.call_soon_threadsafe(_give, outcomes)


def _outcomes(batch: list[Ticket]) -> list[Outcome]:
    """Compute a batch; whatever goes wrong is the answer to its requests, not the thread's end."""
    try:
        return list(zip(batch, answers(batch), strict=True))
    except Exception as error:
        logging.getLogger("vitlab").error("a batch of %d images failed: %s", len(batch), error)
        failed = ServiceError(f"the model failed ({type(error).__name__})")
        return [(ticket, failed) for ticket in batch]


def _removed(ticket: Ticket) -> ServiceError:
    return ServiceError(f"the model {ticket.served.card.name!r} was removed")


def _stopping() -> ServiceError:
    return ServiceError("the service is stopping")


def _give(outcomes: Sequence[Outcome]) -> None:
    for ticket, outcome in outcomes:
        settle(ticket.future, outcome)
