"""Progress and messages: a live bar on a terminal, lines on stderr elsewhere, all by `logging`.

Messages go to the logger `vitlab`, which prints them on stderr as they are unless the program's own
logging does.

What takes long is a `Work`: a `Meter`, which counts, or a block of `named_if_slow`. A thread looks
four times a second at what is going on. On a terminal it is a line that moves; elsewhere it is
named within five seconds, and every ten from then on, whatever the program is busy with.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self

from vitlab.errors import escape_controls
from vitlab.units import clock

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

PAUSE = 10.0  # seconds between two lines
SILENCE = 2.0  # seconds before something that takes long is named
FIRST = 4.0  # seconds without a line, after which what has not been named yet is
LOOK = 0.25  # seconds between two looks at what is going on
LEAST, MOST = 6, 40  # columns of the bar
GAP = "  "
LOG = logging.getLogger("vitlab")
QUIET = ContextVar("quiet", default=False)


class ToStderr(logging.Handler):
    """Prints messages as they are, unless the program's own logging prints them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one, but of a quiet call only warnings."""
        own = [getattr(each, "stream", None) for each in logging.getLogger().handlers]
        muted = QUIET.get() and record.levelno < logging.WARNING
        if not muted:
            WATCH.note_line()
        if not muted and sys.stderr not in own and sys.stdout not in own:
            print(escape_controls(self.format(record)), file=sys.stderr, flush=True)


class OfMatplotlib(logging.Filter):
    """Drops what Matplotlib says of its optional caches, which it can do without."""

    STARTS = (
        "mkdir -p failed",
        "Matplotlib created a temporary",
        "Matplotlib is building the font",
    )

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is about something else."""
        return not str(record.msg).startswith(self.STARTS)


logging.getLogger("matplotlib").addFilter(OfMatplotlib())
logging.getLogger("matplotlib.font_manager").addFilter(OfMatplotlib())
LOG.addHandler(ToStderr())
LOG.setLevel(logging.INFO)


def say(*lines: str) -> None:
    """Tell the user: on stderr, unless `logging` is set up otherwise."""
    for line in lines:
        LOG.info(line)


def _is_first() -> bool:
    """Return whether this process is the one of torchrun's that speaks."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def named_if_slow(what: str, shown: bool = True, by_itself: bool = True) -> Iterator[None]:
    """Say what is being done if the block takes more than two seconds, and again while it lasts.

    Args:
        what: in words: `reading 12,000 files`
        shown: whether to say anything; of several processes only one does
        by_itself: whether the block is one piece of work; a whole command or call is not, and is
            named only where nothing inside it is, by the first process of torchrun's alone
    """
    work = Work(what, shown and (by_itself or _is_first()), by_itself)
    try:
        WATCH.begin(work)
        yield
    finally:
        WATCH.end(work)


def terminal_width() -> int | None:
    """Return the columns of the terminal that stderr is; None if it is none, or cannot redraw."""
    if not sys.stderr.isatty():
        return None
    console = _console()
    return None if console.is_dumb_terminal else console.width


class Work:
    """Something that may take long.

    Args:
        what: in words
        shown: whether to show anything; of several processes only one does
        by_itself: whether it is one piece of work, and not one that others are part of

    Attributes:
        start: when it began, by the watch's clock
        is_named: whether a line has named it
    """

    patience = SILENCE  # seconds before it is shown

    def __init__(self, what: str, shown: bool = True, by_itself: bool = True) -> None:
        self.what = what
        self.by_itself = by_itself
        self.shown = shown and not QUIET.get()
        self.start = WATCH.clock()
        self.is_named = False

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return WATCH.clock() - self.start

    def line(self) -> str:
        """Return the line of a log."""
        return f"{self.what} … {clock(self.seconds)}" if self.is_named else f"{self.what} …"

    def drawing(self, console: "Console") -> "Text":
        """Return the line of a terminal, which is drawn again and again."""
        from rich.text import Text

        signs = "|/-\\" if console.options.ascii_only else "⠋⠙⠸⠴⠦⠇"
        sign = signs[int(self.seconds / LOOK) % len(signs)]
        parts = (escape_controls(self.what, ""), sign, clock(self.seconds))
        return Text(GAP, no_wrap=True, overflow="crop").join(map(Text, parts))


class Watch:
    """Looks at what is going on, and shows it when nothing has been said for a while.

    Args:
        clock: seconds, from any moment on

    Attributes:
        clock: by which work is slow
        works: what is going on, the innermost last
        live: the line of a terminal, while there is one
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget everything: in a forked process it is the parent's, and no thread looks."""
        self.works: list[Work] = []
        self.live: Live | None = None
        self._last = self.clock()  # of all lines
        self._lock = threading.RLock()
        self._working = threading.Event()
        self._thread: threading.Thread | None = None

    def note_line(self) -> None:
        """Note that there was a line."""
        self._last = self.clock()

    def begin(self, work: Work) -> None:
        """Look at some work until its end."""
        if not work.shown:
            return
        with self._lock:
            if not self.works:
                self.note_line()  # a silence before it is none of ours
            self.works.append(work)
            self._draw()
            self._working.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="progress", daemon=True)
                self._thread.start()

    def end(self, work: Work) -> None:
        """Look at it no more."""
        if not work.shown:
            return
        with self._lock:
            if work in self.works:
                self.works.remove(work)
            if not self.works:
                self._working.clear()
            self._draw()

    def _look(self) -> None:
        while True:
            self._working.wait()
            time.sleep(LOOK)
            with self._lock:
                self._draw()
                work = choose_due(self.works, self.clock(), self._last)
                if work and not self.live:
                    self.note_line()  # whatever handler writes it
                    say(work.line())
                    work.is_named = True

    def _draw(self) -> None:
        """Begin or end the line of a terminal."""
        if self._find_slow() is None:
            if self.live:
                self.live.stop()
                self.live = None
        elif self.live is None and terminal_width() is not None:
            from rich.live import Live

            console = _console()
            self.live = Live(
                get_renderable=lambda: self._drawing(console),
                console=console,
                transient=True,
                redirect_stdout=False,
            )
            self.live.start()

    def _find_slow(self) -> "Work | None":
        """Return the innermost work that takes long; while it is drawn, nothing prints results."""
        slow = (each for each in reversed(self.works) if each.by_itself)
        return next((each for each in slow if each.seconds >= each.patience), None)

    def _drawing(self, console: "Console") -> "Text | str":
        work = self._find_slow()
        return work.drawing(console) if work else ""


def choose_due(works: Sequence[Work], now: float, last: float) -> Work | None:
    """Return the work that a log has to name now, if any.

    Args:
        works: what is going on, the innermost last
        now: seconds, by the watch's clock
        last: when the last line was
    """
    if not works:
        return None
    work = next((each for each in reversed(works) if each.by_itself), works[-1])
    silent = now - last
    if work.is_named:
        return work if silent >= PAUSE else None
    at_once = work.by_itself and 0 < work.patience <= now - work.start
    return work if at_once or silent >= FIRST else None


class Meter(Work):
    """Shows how much of some work is done.

    Args:
        total: number of steps
        done: steps done before
        title: what is counted, or being done
        shown: whether to show anything; of several processes only one does
        is_even: whether its steps take about as long as each other, so that the rest is foreseen
    """

    patience = 0.0

    def __init__(
        self,
        total: int,
        done: int = 0,
        title: str = "training",
        shown: bool = True,
        is_even: bool = True,
    ) -> None:
        super().__init__(title, shown)
        self.total = total
        self.done = self.first = done
        self.note = ""
        self.is_even = is_even

    def __enter__(self) -> Self:
        """Start to show it."""
        WATCH.begin(self)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the terminal."""
        WATCH.end(self)

    def show(self, done: int, note: str, total: int | None = None) -> None:
        """Show the number of steps done.

        Args:
            done: steps done
            note: how it goes, in parts with two spaces between them, the most important one first
            total: number of steps, if it has changed
        """
        self.total = total or self.total
        self.done, self.note = done, note

    def images(self, done: int, total: int) -> None:
        """Show the number of images done, as a pass over them tells it."""
        self.show(done, "images", total)

    def say(self, text: str) -> None:
        """Print a line of text, above the bar where there is one."""
        if self.shown:
            say(text)

    @property
    def head(self) -> str:
        """What is done, of how much; how much is not known before it has begun."""
        return f"{self.what} {self.done:,}/{self.total:,}" if self.total else f"{self.what} …"

    @property
    def left(self) -> str:
        """How long the rest will take, at the pace so far; at first, how long it has taken."""
        steps = self.done - self.first
        if not steps or not self.is_even:
            return f"{clock(self.seconds)} so far"
        return f"{clock((self.total - self.done) * self.seconds / steps)} left"

    def line(self) -> str:
        """Return the line of a log."""
        return GAP.join(filter(None, [self.head, *self.note.split(GAP), self.left]))

    def drawing(self, console: "Console") -> "Text":
        """Return the line of a terminal, with a bar if there is room."""
        from rich.text import Text

        parts, wide = fitted(self.head, self.note.split(GAP), self.left, console.width - 1)
        filled = round(wide * min(1.0, self.done / max(1, self.total)))
        full, empty = ("#", "-") if console.options.ascii_only else ("━", "─")
        bar = Text.assemble((full * filled, "green"), (empty * (wide - filled), "dim"))
        head, *rest = (Text(escape_controls(each, "")) for each in (self.head, *parts, self.left))
        pieces = [head, *([bar] if wide else []), *rest]
        return Text(GAP, no_wrap=True, overflow="crop").join(pieces)


def fitted(head: str, parts: list[str], left: str, width: int) -> tuple[list[str], int]:
    """Return the parts of a line for which there is room, and the columns of its bar.

    What is done and how long the rest takes is always there; then come the parts, in their order,
    and the bar gets what is left; without room for it, it is not drawn (0 columns).

    Args:
        head: what is done
        parts: how it goes, the most important part first
        left: how long the rest takes
        width: columns of the whole line
    """
    room = width - len(head) - len(GAP) - len(left)
    kept: list[str] = []
    for part in filter(None, parts):
        least = 0 if not kept else LEAST + len(GAP)  # the first part is worth more than a bar
        if room - len(part) - len(GAP) < least:
            break
        room -= len(part) + len(GAP)
        kept.append(part)
    bar = min(MOST, room - len(GAP))
    return kept, bar if bar >= LEAST else 0


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True)


WATCH = Watch()
# a process is never forked while the thread prints
os.register_at_fork(
    before=lambda: WATCH._lock.acquire(),
    after_in_parent=lambda: WATCH._lock.release(),
    after_in_child=lambda: WATCH._begin_anew(),
)
