"""Many runs at once, each in a process of its own, in the order that their needs allow."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from vitlab.data.learning import OpenedData
from vitlab.errors import RunError
from vitlab.studies.grid.jobs import Figures, Job
from vitlab.studies.grid.runs.one_run import Work, perform
from vitlab.studies.grid.runs.worker_process import interruptible, prepare, put_off

FAILED = "diverged"


class Workers:
    """Performs works in this process, or several at once in others.

    Args:
        at_once: works at the same time; one is done in this process, with all its threads
        threads: of each process, if there are several
    """

    def __init__(self, at_once: int, threads: int = 1) -> None:
        self.at_once = at_once
        self._pool = None
        if at_once > 1:
            self._pool = ProcessPoolExecutor(
                at_once, multiprocessing.get_context("spawn"), prepare, (threads,)
            )

    def all(
        self,
        jobs: Sequence[Job],
        done: dict[str, Figures],
        work_of: Callable[[Job], Work],
    ) -> Iterator[tuple[Job, Figures]]:
        """Perform jobs, each as soon as those that it needs are done; yield each with its figures.

        Args:
            jobs: in the order in which they are preferred
            done: figures by the names of jobs, to which those of these are added
            work_of: makes the work of a job whose needs are done

        Raises:
            RunError: a process died.
            UserError: as `vitlab.train`, except that a run diverged.
            KeyboardInterrupt: a stop was asked for; what was begun can be continued.
        """
        waiting = [job for job in jobs if job.name not in done]
        running: dict[Future[Figures], Job] = {}
        while waiting or running:
            for job in _ready(waiting, done, self.at_once - len(running)):
                waiting.remove(job)
                failed = [name for name in job.models if FAILED in done[name]]
                if failed:
                    done[job.name] = {FAILED: f"{failed[0]} did"}
                    yield job, done[job.name]
                elif self._pool is None:
                    done[job.name] = _perform(work_of(job))
                    yield job, done[job.name]
                else:
                    work = work_of(job)
                    with put_off():  # in a process that this starts, too
                        running[self._pool.submit(interruptible, _perform, work)] = job
            if running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    done[job.name] = _result(future, job)
                    yield job, done[job.name]

    def close(self, asked: bool = False) -> None:
        """End the processes; with `asked`, let them save what they are doing first."""
        if self._pool is None:
            return
        if asked:
            for process in list(self._pool._processes.values()):
                if process.pid is not None and process.is_alive():
                    with suppress(ProcessLookupError):  # it has just ended
                        os.kill(process.pid, signal.SIGINT)
        self._pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def working(at_once: int, threads: int = 1) -> Iterator[Workers]:
    """Have processes in the block; a stop lets them save what they are doing.

    Args:
        at_once: as for `Workers`
        threads: as for `Workers`
    """
    workers = Workers(at_once, threads)
    try:
        yield workers
    except BaseException:
        workers.close(asked=True)
        raise
    workers.close()


def _perform(work: Work) -> Figures:
    return perform(work, _opened())


@cache
def _opened() -> OpenedData:
    """Return what this process has opened."""
    return OpenedData()


def _ready(waiting: Sequence[Job], done: Mapping[str, Any], most: int) -> list[Job]:
    """Return the first jobs, at most so many, that wait for nothing."""
    return [job for job in waiting if all(name in done for name in job.needs)][: max(most, 0)]


def _result(future: "Future[Figures]", job: Job) -> Figures:
    try:
        return future.result()
    except BrokenProcessPool:
        raise RunError(
            f"a process died during {job.name} (out of memory?): run the same command again, with "
            "--at-once 1 if it dies again"
        ) from None
