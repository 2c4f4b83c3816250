"""Ctrl-C and SIGTERM from the first import of a command to its end: one line, and status 130.

Only the modules that Python itself needs are imported here, since this comes before all others.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

STATUS = 130
PATIENCE = 1.0  # seconds in which further signals are ignored, for cleaning up
SOON = 0.01  # seconds


def leave_nothing() -> None:
    """Remove drafts, scratch folders and semaphores of this process, if there may be any.

    Python would remove the latter at its exit; else their tracker warns of each.
    """
    files = sys.modules.get("vitlab.files")
    if clear := getattr(files, "remove_unfinished", None):
        clear()
    util = sys.modules.get("multiprocessing.util")
    if finish := getattr(util, "_run_finalizers", None):
        finish(0)


class Interrupts:
    """Within the context, a signal ends the process in good order.

    While Python and PyTorch start, nothing has been written, and an exception in the middle of an
    import may come out of it as any other error: the process ends at once. After `started`, a
    signal raises KeyboardInterrupt, so that unfinished files are removed on the way out; a second
    one, unless it comes at once, ends the process. Training has its own handlers for its steps
    (`training/stop.py`).

    Args:
        clock: seconds, by which a second signal comes at once or later

    Attributes:
        prog: the command, for the line
        asked: whether a signal came: errors after it are its consequences
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.prog, self.asked = "vitlab", False
        self._clock = clock
        self._at_once = True
        self._process = os.getpid()
        self._since = 0.0  # when the first signal came

    def __enter__(self) -> "Interrupts":
        """Take over the signals, and KeyboardInterrupt where Python ignores exceptions."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        self._hook = sys.unraisablehook
        sys.unraisablehook = self._ignored
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Ignore signals: all is said, and while Python ends it would answer in its own way."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if self.asked and isinstance(error, SystemExit):
            # what runs at exit may still die of a signal: evaluations with workers sometimes did
            leave_nothing()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(error.code or 0))

    def started(self) -> None:
        """Tell that the slow imports are over, and that files may be written."""
        self._at_once = False

    def end(self) -> NoReturn:
        """Print the line and end the process, whatever it is doing."""
        if not self._at_once:
            thread = threading.Thread(target=leave_nothing, daemon=True)
            thread.start()
            thread.join(PATIENCE)  # what holds a lock, and is interrupted here, holds it for good
        os.write(2, f"{self.prog}: interrupted\n".encode("utf-8", "backslashreplace"))
        os._exit(STATUS)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a new process that has no handlers of its own yet
            os._exit(STATUS)
        now = self._clock()
        if self._at_once or (self.asked and now - self._since > PATIENCE):
            self.end()
        if not self.asked:
            self.asked = True
            self._since = now
            raise KeyboardInterrupt

    def _ignored(self, about: "sys.UnraisableHookArgs") -> None:
        """Raise KeyboardInterrupt again that came where Python could only print and ignore it."""
        if isinstance(about.exc_value, KeyboardInterrupt):
            self.asked = False
            signal.signal(signal.SIGALRM, self._handle)
            signal.setitimer(signal.ITIMER_REAL, SOON)  # not here, where it would be ignored too
        else:
            self._hook(about)
