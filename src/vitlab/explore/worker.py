"""The one thread that computes, so that the event loop never waits for a model."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from vitlab.errors import ServiceError

Result = TypeVar("Result")


class Worker:
    """A thread that does one job after the other, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._jobs, self._stopped = queue.SimpleQueue(), False
        self._thread = threading.Thread(target=self._run, name="vitlab-explore", daemon=True)

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
        future: Future[Result] = Future()
        self._jobs.put((future, job))
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while (asked := self._jobs.get()) is not None and not self._stopped:
            future, job = asked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as error:  # whoever asked is told
                future.set_exception(error)
