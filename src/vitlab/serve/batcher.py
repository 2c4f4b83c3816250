"""One thread that computes, a batch at a time, from what waits."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from vitlab.errors import FailedError, LateError, ServiceError
from vitlab.serve.answers import Question, Seen, answers, try_blank
from vitlab.serve.decoders import Rounds, settle, stopping
from vitlab.serve.logs import log
from vitlab.serve.metrics import Metrics
from vitlab.serve.registry import Served

T = TypeVar("T")
LEAVE = 10.0  # seconds
MEMORY = 0.3  # share of the newest batch, if it is a full one, in the average seconds of an image
FAILURES = 3  # batches in a row that fail, after which a blank image is tried
OVERDUE = 10.0  # times the usual seconds of a batch, after which it counts as one that never ends


@dataclass(frozen=True)
class Aside:
    """Something else than a batch for the thread that computes.

    Attributes:
        work: that is to be done
        due: by `time.monotonic`, from when on it is done even if images wait
        future: of its result
    """

    work: Callable[[], Any]
    due: float
    future: Future[Any]


class Batcher:
    """Batches on one device.

    A batch starts as soon as the device is free: while it computes, the next one gathers. Models
    take turns; images for one form share a batch.

    A batch that fails is the answer to its requests. After several in a row a blank image is tried;
    if that fails too, the device is lost: an error of CUDA stays until the process ends.

    Args:
        timeout: of requests, in seconds: a batch may take that long without being overdue
        metrics: that count the batches
    """

    def __init__(self, timeout: float, metrics: Metrics) -> None:
        self._timeout, self._metrics = timeout, metrics
        self._batch: list[Question] = []  # that is computed now
        self._began = 0.0
        self._in_a_row, self._lost = 0, ""  # failed batches; why none can be computed any more
        self._waiting: Rounds[Served, Question] = Rounds()
        self._aside: Aside | None = None  # what is to be done between batches
        self._beside = False  # it is being done now
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
        usual = len(batch) * batch[0].served.form.pace if batch else 0.0
        if batch and seconds > max(self._timeout, OVERDUE * usual):
            return f"a batch of {len(batch)} images has been computing for {seconds:.0f} seconds"
        if self._beside and seconds > self._timeout:
            return f"a pass that is timed has been computing for {seconds:.0f} seconds"
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
        for question in self._batch:
            settle(question.future, stopping())

    def alone(self, work: Callable[[], T], due: float) -> T:
        """Do something in the thread that computes, and wait for it; one thread at a time may ask.

        Args:
            work: done once no image waits; between two batches if there is always one
            due: by `time.monotonic`, from when on it is done so

        Raises:
            ServiceError: the thread stops, or does not run.
            Exception: what `work` raises.
        """
        aside = Aside(work, due, Future())
        with self._changed:
            if self._stopping or self._thread is None:
                raise stopping()
            self._aside = aside
            self._changed.notify()
        found: T = aside.future.result()
        return found

    def put(self, question: Question) -> None:
        """Let an image wait for its batch."""
        with self._changed:
            if self._stopping:
                settle(question.future, stopping())
                return
            self._waiting.push(question.served, question)
            self._changed.notify()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._began = time.monotonic()
            if isinstance(batch, Aside):
                self._do(batch)
                continue
            self._batch = batch
            self._metrics.batch_images.observe(len(batch))
            outcomes: Sequence[Seen | ServiceError]
            try:
                outcomes = answers(batch)
                self._in_a_row = 0
                self._measure(batch)
            except Exception as error:  # the answer to its requests, not the thread's end
                outcomes = [self._failed(batch, error)] * len(batch)
            self._batch = []
            for question, outcome in zip(batch, outcomes, strict=True):
                self._give(question, outcome)

    def _do(self, aside: Aside) -> None:
        """Do something else than a batch, whose end another thread waits for."""
        self._beside = True
        try:
            aside.future.set_result(aside.work())
        except BaseException as error:  # of whoever asked for it
            aside.future.set_exception(error)
        self._beside = False

    def _measure(self, batch: list[Question]) -> None:
        """Take the time of a batch that was computed into the pace of its form."""
        seconds = time.monotonic() - self._began
        self._metrics.batch_seconds.observe(seconds)
        first, pace = batch[0].served, seconds / len(batch)
        full = len(batch) / first.batch  # a small batch says little of the pace under load
        form = first.form
        form.pace += (pace - form.pace) * (MEMORY * full if form.pace else 1)

    def _failed(self, batch: list[Question], error: Exception) -> ServiceError:
        """Count and describe a failure, and find out whether anything can be computed still."""
        models = sorted({question.served.card.name for question in batch})
        log("batch failed", logging.ERROR, error=True, images=len(batch), models=models)
        for question in batch:
            self._metrics.count("broken", question.served.card.name, 1)
        self._in_a_row += 1
        if self._in_a_row >= FAILURES:
            try:
                try_blank(batch[0].served)
                self._in_a_row = 0
            except Exception as again:
                self._lost = f"the device computes no more: {again or type(again).__name__}"
        return FailedError(f"the model failed ({type(error).__name__})")

    def _next(self) -> list[Question] | Aside | None:
        """Wait for the next batch, or what is to be done between two; None at the end."""
        with self._changed:
            while True:
                self._changed.wait_for(
                    lambda: self._stopping or len(self._waiting) or self._aside is not None
                )
                aside = self._aside
                if self._stopping:
                    while len(self._waiting):
                        self._give(self._waiting.pop(), stopping())
                    if aside is not None:
                        aside.future.set_exception(stopping())
                    return None
                if aside is not None and (not len(self._waiting) or time.monotonic() >= aside.due):
                    self._aside = None
                    return aside
                if batch := self._taken():
                    return batch

    def _taken(self) -> list[Question]:
        """Take a batch: of the model whose turn it is, and of others of its form, in turn."""
        batch: list[Question] = []
        first = next(iter(self._waiting))
        key: Served | None = first
        while key is not None and len(batch) < first.batch:
            question = self._waiting.pop(key)
            if time.monotonic() + (len(batch) + 1) * first.form.pace > question.due:
                self._give(question, LateError("no answer in time"))  # computed for nobody
            elif question.future is not None and not question.future.done():  # else nobody waits
                batch.append(question)
            key = next((each for each in self._waiting if each.form is first.form), None)
        return batch

    def _give(self, question: Question, outcome: Seen | ServiceError) -> None:
        """Let the event loop settle what a request waits for."""
        assert self._loop is not None
        with suppress(RuntimeError):  # closed: nobody waits any more
            self._loop.call_soon_threadsafe(lambda: settle(question.future, outcome))
