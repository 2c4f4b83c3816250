"""Processes side by side, each of which does one piece of work after the other.

A process that waits for work reads from a pipe of its own: it may be ended at any moment, and ends
by itself with the process that started it. While it works it has its own handlers for signals, as
training does, whose state is saved.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Self, TypeVar

from vitlab.errors import RunError, UserError

STOPS = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


class SideBySide(Generic[T]):
    """Does several pieces of work at the same time, each in a process of its own.

    Args:
        function: does a piece of work, given its arguments; it, these and its result are pickled
        threads: of each process, which starts when it is first needed
        again: what to do after a process died
    """

    def __init__(
        self, function: Callable[..., T], threads: int, again: str = "repeat the command"
    ) -> None:
        self._function, self._threads, self._again = function, threads, again
        self._idle: list[Connection] = []
        self._busy: dict[Connection, str] = {}
        self._processes: dict[Connection, Any] = {}

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the processes; what is being done is interrupted, and may save its state before."""
        for pipe, process in self._processes.items():
            if pipe in self._busy:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
            pipe.close()
        for process in self._processes.values():
            process.join()

    def begin(self, name: str, *given: Any) -> None:
        """Begin a piece of work."""
        pipe = self._idle.pop() if self._idle else self._started()
        self._busy[pipe] = name
        pipe.send(given)

    def finished(self) -> tuple[str, T]:
        """Wait until a piece of work is done; return its name and its result.

        Raises:
            RunError: its process died.
            UserError: as the work itself.
            KeyboardInterrupt: it was interrupted.
        """
        pipe = wait(list(self._busy))[0]
        assert isinstance(pipe, Connection)
        name = self._busy.pop(pipe)
        try:
            result: T | BaseException = pipe.recv()
        except (EOFError, ConnectionError):
            raise RunError(
                f"a process died during {name} (out of memory?): {self._again}, with fewer at the "
                "same time if it dies again"
            ) from None
        self._idle.append(pipe)
        if isinstance(result, BaseException):
            raise result
        return name, result

    def _started(self) -> Connection:
        """Start a process; until it is ready, it puts signals off."""
        ours, theirs = multiprocessing.Pipe()
        given = theirs, self._function, self._threads
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=given)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._processes[ours] = process
        return ours


def _serve(pipe: Connection, function: Callable[..., Any], threads: int) -> None:
    """Work until the pipe is closed, or a signal comes."""
    import torch

    os.setpgrp()  # a terminal's Ctrl-C reaches the first process, which passes it on
    torch.set_num_threads(threads)
    threading.Thread(target=_follow, daemon=True).start()
    try:
        for number in STOPS:
            signal.signal(number, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        while True:
            given = pipe.recv()
            try:
                result = function(*given)
            except UserError as error:
                result = error
            pipe.send(result)
    except (EOFError, ConnectionError):
        pass  # nobody is left to work for
    except KeyboardInterrupt as stop:
        with suppress(OSError):
            pipe.send(KeyboardInterrupt(*stop.args))


def _follow() -> None:
    """Interrupt this process once its parent is dead; it saves what it is doing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody is left to be told
        os.kill(os.getpid(), signal.SIGINT)
