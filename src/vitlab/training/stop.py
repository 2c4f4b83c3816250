"""Stopping a run from outside without losing anything."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and its state is saved.

    Attributes:
        quiet: whether another process of the same run tells the user
    """

    quiet = False


class Stop:
    """In the block SIGINT or SIGTERM asks to stop after the step, a second one stops at once.

    Attributes:
        asked: whether one came
        patient: whether a second one changes nothing, as of several processes all must stop at the
            same step, and torchrun and schedulers are free with their signals
    """

    def __init__(self) -> None:
        self.asked = False
        self.patient = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Take over the signals, which only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self.patient:
            raise KeyboardInterrupt
        self.asked = True
