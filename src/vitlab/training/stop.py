"""SIGINT and SIGTERM: stopping a run from outside without losing anything."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

START = "interrupted before the first step: run the command again"


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and its state is saved.

    Attributes:
        quiet: whether another process of the same run reports it
    """

    quiet = False


class Stop:
    """Within the context, SIGINT or SIGTERM asks the run to stop where nothing is lost.

    That is where `check` is called, or anywhere in a block of `at_once`. A second signal stops
    wherever the program is.

    Args:
        patient: ignore a second signal: several processes must all stop at the same step, and
            torchrun and schedulers may repeat signals

    Attributes:
        asked: whether a signal came
        message: what the user is told, which depends on how far the run is
        quiet: whether another process of the same run reports it
    """

    def __init__(self, patient: bool = False) -> None:
        self.asked, self.patient = False, patient
        self.message, self.quiet = START, False
        self.before: dict[int, Any] = {}
        self._now = self._raised = False
        self._process = os.getpid()

    def __enter__(self) -> Self:
        """Take over the signals, which only the main thread may do."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._ask)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._ignored
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Restore the signals.

        Raises:
            Interrupted: in place of what a library, stopped halfway, made of it.
        """
        for number, handler in self.before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook
        if self._raised and error is not None and not isinstance(error, Interrupted):
            raise self.interrupted() from error

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In the block, which must leave nothing half-written, stop without waiting for its end.

        Raises:
            Interrupted: a stop was or is asked for.
        """
        before, self._now = self._now, True
        try:
            self.check()
            yield
        finally:
            self._now = before

    def check(self) -> None:
        """Stop here if a stop was asked for.

        Raises:
            Interrupted: it was.
        """
        if self.asked:
            raise self.interrupted()

    def interrupted(self) -> Interrupted:
        """Return the error to raise."""
        error = Interrupted(self.message)
        error.quiet = self.quiet
        return error

    def _ignored(self, about: "sys.UnraisableHookArgs") -> None:
        """Say nothing of an interruption that came where Python ignores it: `check` will raise."""
        if not isinstance(about.exc_value, Interrupted):
            self._hook(about)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a worker that has just begun, and ignores signals later
            return
        again, self.asked = self.asked, True
        if self._now or (again and not self.patient):
            self._raised = True
            raise self.interrupted()
