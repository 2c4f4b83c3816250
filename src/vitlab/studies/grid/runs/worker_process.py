"""A process for runs, from its start to its end: its threads, its signals, its parent.

A process that waits for work holds the lock of the pool's queue. If it ended at SIGINT, the others
would wait for that lock forever. So it stays, but begins nothing anymore, and ends with the pool.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ParamSpec, TypeVar

STOPS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 30.0  # seconds for saving a run whose parent is dead
STATUS = 130

P = ParamSpec("P")
T = TypeVar("T")


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
