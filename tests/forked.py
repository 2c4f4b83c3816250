"""Commands in a process of their own, forked from the test's: no imports to wait for.

A fresh interpreter imports for seconds before it does what a test is about. The entry point
itself, and signals before the imports are over, are tested in fresh ones (tests/console).
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from conftest import BRIEF
from steady import PATIENCE
from vitlab import __main__ as entry
from vitlab.cli import main
from vitlab.console.interrupts import Interrupts


def _nothing() -> None:
    return


def _unnamed() -> int:
    file, name = tempfile.mkstemp()
    Path(name).unlink()
    return file


class Forked:
    """`vitlab WORDS` in a process of its own; in part as `subprocess.Popen`.

    Attributes:
        pid: of the process
        out, err: what it has printed, once `wait` has returned
    """

    def __init__(self, words: Sequence[str], before: Callable[[], None] = _nothing) -> None:
        """Start it in the folder of this process; `before` is called first."""
        self.out = self.err = ""
        self._files = [_unnamed(), _unnamed()]
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=self._work, args=(list(words), before))
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    def _work(self, words: list[str], before: Callable[[], None]) -> None:
        for number, file in enumerate(self._files, 1):
            os.dup2(file, number)
        sys.stdout, sys.stderr = (
            os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2)
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        before()
        try:
            with Interrupts() as interrupts:
                entry.hush()
                main(words, interrupts, BRIEF)
        except SystemExit as stop:
            code = stop.code
        sys.exit(code)  # without the frames of the other, which hold loaders with workers

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it works."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit status; it is killed if it works for longer."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        if self._files:
            self.out, self.err = (os.pread(f, os.fstat(f).st_size, 0).decode() for f in self._files)
            for file in self._files:
                os.close(file)
            self._files = []
        assert self._process.exitcode is not None
        return self._process.exitcode
