"""A process for runs, from its start to its end: its threads, its signals, its parent.

It imports nothing heavy, so that it can be ended while it still imports PyTorch.
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
    _on_stop(_leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def interruptible(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Do something that a signal interrupts; at any other time a signal ends the process.

    Raises:
        KeyboardInterrupt: a signal came; training has its own handlers and saves its state before.
    """
    _on_stop(signal.default_int_handler)
    try:
        return work(*args, **options)
    finally:
        _on_stop(_leave)


@contextmanager
def put_off() -> Iterator[None]:
    """Put off the signals that end a command; a process started in the block does so too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _on_stop(handler: Any) -> None:
    for number in STOPS:
        signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(STATUS)


def _follow(parent: Any) -> None:
    """End this process after its parent, as soon as a run that is under way is saved."""
    parent.join()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody is left to be told
    os.kill(os.getpid(), signal.SIGINT)
    end = time.monotonic() + PATIENCE
    while signal.getsignal(signal.SIGINT) is not _leave and time.monotonic() < end:
        time.sleep(0.05)
    os._exit(1)
