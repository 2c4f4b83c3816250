"""One thread that computes, a batch at a time, from what waits."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from vitlab.errors import FailedError, LateError, ServiceError
from vitlab.serve.answers import Seen, Ticket, answers, warm
from vitlab.serve.decoders import Rounds, settle
from vitlab.serve.logs import log
from vitlab.serve.metrics import Metrics
from vitlab.serve.registry import Served, Trunk

LEAVE = 10.0  # seconds
Outcome = tuple[Ticket, Seen | ServiceError]
MEMORY = 0.3  # share of the newest batch, if it is a full one, in the average seconds of an image
FAILURES = 3  # batches in a row that fail, after which a blank image is tried
OVERDUE = 10.0  # times the average seconds of a batch, after which it counts as one that never ends


class Batcher:
    """Batches on one device.

    A batch starts as soon as the device is free: while it computes, the next one gathers. Only
    where more images of the same trunk are being decoded just then, it waits for them, up to
    `delay`. Models take turns; images of one trunk's models share a batch.

    A batch that fails is the answer to its requests. After several in a row a blank image is tried;
    if that fails too, the device is lost: an error of CUDA stays until the process ends.

    Args:
        delay: seconds
        timeout: of requests, in seconds: a batch may take that long without being overdue
        metrics: that count the batches
    """

    def __init__(self, delay: float, timeout: float, metrics: Metrics) -> None:
        self._delay, self._timeout, self._metrics = delay, timeout, metrics
        self._batch: list[Ticket] = []  # that is computed now
        self._began, self._usual = 0.0, 0.0  # when; seconds of an average batch
        self._in_a_row, self._lost = 0, ""  # failed batches; why none can be computed any more
        self._waiting: Rounds[Ticket] = Rounds()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def computing(self) -> int:
        """Images in a model now."""
        return len(self._batch)

    @property
    def trouble(self) -> str:
        """Why nothing is computed any more; empty while all is well."""
        batch, seconds = self._batch, time.monotonic() - self._began
        if batch and seconds > max(self._timeout, OVERDUE * self._usual):
            return f"a batch of {len(batch)} images has been computing for {seconds:.0f} seconds"
        return self._lost

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
            self._began, self._batch = time.monotonic(), batch
            outcomes = self._computed(batch)
            self._batch = []
            self._deliver(outcomes)

    def _computed(self, batch: list[Ticket]) -> list[Outcome]:
        """Compute a batch; what goes wrong is the answer to its requests, not the thread's end."""
        self._metrics.batch_images.observe(len(batch))
        try:
            outcomes: list[Outcome] = list(zip(batch, answers(batch), strict=True))
        except Exception as error:
            return self._failed(batch, error)
        self._in_a_row = 0
        seconds = time.monotonic() - self._began
        self._metrics.batch_seconds.observe(seconds)
        self._usual += (seconds - self._usual) * (MEMORY if self._usual else 1)
        first, pace = batch[0].served, seconds / len(batch)
        full = len(batch) / first.batch  # a small batch says little of the pace under load
        first.trunk.pace += (pace - first.trunk.pace) * (MEMORY * full if first.trunk.pace else 1)
        return outcomes

    def _failed(self, batch: list[Ticket], error: Exception) -> list[Outcome]:
        """Count and describe a failure, and find out whether anything can be computed still."""
        models = sorted({ticket.served.card.name for ticket in batch})
        log("batch failed", logging.ERROR, error=True, images=len(batch), models=models)
        for ticket in batch:
            self._metrics.count("broken", ticket.served.card.name, 1)
        self._in_a_row += 1
        if self._in_a_row >= FAILURES:
            try:
                warm(batch[0].served, 1)
                self._in_a_row = 0
            except Exception as again:
                self._lost = f"the device computes no more: {again or type(again).__name__}"
        failed = FailedError(f"the model failed ({type(error).__name__})")
        return [(ticket, failed) for ticket in batch]

    def _next(self) -> list[Ticket]:
        """Wait for the next batch; none at the end."""
        with self._changed:
            while True:
                if self._stopping:
                    while len(self._waiting):
                        ticket = self._waiting.pop()
                        self._deliver([(ticket, _stopping())])
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
            done = time.monotonic() + (len(batch) + 1) * served.trunk.pace
            if key.gone:
                error = ServiceError(f"the model {key.card.name!r} was removed")
                self._deliver([(ticket, error)])
            elif done > ticket.due:  # it would be computed for nobody
                self._deliver([(ticket, LateError("no answer in time"))])
            elif not ticket.future.done():  # else nobody waits for it any more
                batch.append(ticket)
            turns = (self._waiting.line(each)[0].served for each in self._waiting)
            key = next((each for each in turns if each.trunk is served.trunk), None)
        return batch

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # closed: nobody waits any more
            self._loop.call_soon_threadsafe(_give, outcomes)


def _stopping() -> ServiceError:
    return ServiceError("the service is stopping")


def _give(outcomes: Sequence[Outcome]) -> None:
    for ticket, outcome in outcomes:
        settle(ticket.future, outcome)
