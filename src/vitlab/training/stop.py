"""Stopping a run from outside without losing anything."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and its state is saved.

    Attributes:
        quiet: whether another process of the same run reports it
    """

    quiet = False


class Stop:
    """Within the context, SIGINT or SIGTERM asks to stop after the current step.

    A second signal stops at once.

    Args:
        patient: ignore a second signal: several processes must all stop at the same step, and
            torchrun and schedulers may repeat signals

    Attributes:
        asked: whether a signal came
    """

    def __init__(self, patient: bool = False) -> None:
        self.asked, self.patient = False, patient
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Take over the signals, which only the main thread may do."""
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
        """Restore the signals."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self.patient:
            raise KeyboardInterrupt
        self.asked = True
