"""The one thread that computes, so that the event loop never waits for a model."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from vitlab.errors import ServiceError

Result = TypeVar("Result")


class Worker:
    """A thread that does one job after the other, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="vitlab-explore", daemon=True)
        self._stopped = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more jobs; the one under way may go on while the process ends."""
        self._stopped = True
        self._jobs.put(None)

    async def do(self, job: Callable[[], Result]) -> Result:
        """Wait for a job; one that nobody waits for any more when its turn comes is not begun.

        Raises:
            ServiceError: the thread was stopped.
        """
        if self._stopped:
            raise ServiceError("the explorer is ending")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def give(result: Result | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        def run() -> None:
            if future.done():
                return
            result: Result | BaseException
            try:
                result = job()
            except BaseException as error:  # whoever asked is told
                result = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(give, result)

        self._jobs.put(run)
        return await future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None and not self._stopped:
            job()
