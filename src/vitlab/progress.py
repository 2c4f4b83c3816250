"""Progress on stderr: a live bar on a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from vitlab.units import duration

PAUSE = 10.0  # seconds between two lines


def say(text: str) -> None:
    """Print a message for the user on stderr."""
    print(text, file=sys.stderr, flush=True)


class Meter:
    """Shows how much of some work is done.

    Args:
        total: number of steps
        done: steps done before
        title: what is being done
        shown: whether to show anything; of several processes only one does
    """

    def __init__(
        self, total: int, done: int = 0, title: str = "training", shown: bool = True
    ) -> None:
        self.total, self.title, self.shown = total, title, shown
        self.first, self.start = done, time.monotonic()
        self.last = self.start
        self.bar: Progress | None = None
        if shown and sys.stderr.isatty():
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                transient=True,
            )
            self.task = self.bar.add_task(title, total=total, completed=done, note="")

    def __enter__(self) -> Self:
        """Start to show it."""
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the terminal."""
        if self.bar:
            self.bar.stop()

    def show(self, done: int, note: str, total: int | None = None) -> None:
        """Show the number of steps done.

        Args:
            done: steps done
            note: how it goes
            total: number of steps, if it has changed
        """
        self.total = self.total if total is None else total
        if self.bar:
            self.bar.update(self.task, completed=done, total=self.total, note=note)
            return
        now = time.monotonic()
        if self.shown and now - self.last >= PAUSE and done > self.first:
            self.last = now
            left = (self.total - done) * (now - self.start) / (done - self.first)
            say(f"{self.title} {done}/{self.total}  {note}  {duration(left)} left")
