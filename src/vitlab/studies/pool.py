"""Many runs at once, each in a process of its own, in the order that their needs allow.

A process that waits for work holds the lock of the pool's queue. If it ended at SIGINT, the others
would wait for that lock forever. So it stays, but begins nothing anymore, and ends with the pool.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType
from typing import Any, ParamSpec, Self, TypeVar

from vitlab.data.learning import OpenedData
from vitlab.errors import RunError
from vitlab.studies.jobs import FAILED, Figures, Job
from vitlab.studies.one_run import Work, perform

STOPS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 30.0  # seconds for saving a run whose parent is dead
STATUS = 130

P = ParamSpec("P")
T = TypeVar("T")


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

        What is not performed has no figures: a run after one that diverged, and one for a further
        learning rate where none is needed.

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
            ready = (job for job in waiting if all(name in done for name in job.needs))
            while len(running) < self.at_once and (job := next(ready, None)):
                waiting = [other for other in waiting if other is not job]
                failed = [name for name in job.models if FAILED in done[name]]
                if failed or (job.further and not job.factor(done)):
                    done[job.name] = {FAILED: f"{failed[0]} did"} if failed else {}
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

    def __enter__(self) -> Self:
        """Return the workers."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the processes; a stop lets them save what they are doing first."""
        self.close(asked=kind is not None)

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


def _perform(work: Work) -> Figures:
    return perform(work, _opened())


@cache
def _opened() -> OpenedData:
    """Return what this process has opened."""
    return OpenedData()


def _result(future: Future[Figures], job: Job) -> Figures:
    try:
        return future.result()
    except BrokenProcessPool:
        raise RunError(
            f"a process died during {job.name} (out of memory?): run the same command again, with "
            "--at-once 1 if it dies again"
        ) from None


def prepare(threads: int) -> None:
    """Make a new process ready: its threads, its signals, and its end with that of its parent."""
    os.setpgrp()  # a terminal's Ctrl-C reaches the first process, which passes it on
    os.environ["OMP_NUM_THREADS"] = str(threads)
    _idle(_stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def interruptible(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Do something that a signal interrupts; once SIGINT has come, begin nothing anymore.

    Raises:
        KeyboardInterrupt: a signal came; training has its own handlers and saves its state before.
    """
    handler: Any = _stop
    try:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if before is signal.SIG_IGN:
            raise KeyboardInterrupt
        return work(*args, **options)
    except KeyboardInterrupt:
        handler = signal.SIG_IGN
        raise
    finally:
        _idle(handler)


@contextmanager
def put_off() -> Iterator[None]:
    """Put off the signals that end a command; a process started in the block does so too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _idle(at_sigint: Any) -> None:
    """Answer signals as a process that waits for work: only SIGTERM, the pool's own, ends it."""
    signal.signal(signal.SIGINT, at_sigint)
    signal.signal(signal.SIGTERM, _leave)


def _stop(number: int, frame: FrameType | None) -> None:
    """Begin nothing anymore; that SIGINT is ignored says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(STATUS)


def _follow(parent: Any) -> None:
    """End this process after its parent, as soon as a run that is under way is saved."""
    parent.join()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody is left to be told
    os.kill(os.getpid(), signal.SIGINT)
    end = time.monotonic() + PATIENCE
    idle = (_stop, signal.SIG_IGN)
    while signal.getsignal(signal.SIGINT) not in idle and time.monotonic() < end:
        time.sleep(0.05)
    os._exit(1)
