"""Progress and messages: a live bar on a terminal, lines on stderr elsewhere, all by `logging`.

Messages go to the logger `vitlab`, which prints them on stderr as they are unless the program's own
logging does. `public` gives functions `quiet=True`, and a line for an argument of a wrong type.
"""

import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from vitlab.errors import (
    BY_COMMAND,
    OptionError,
    UserError,
    as_user_error,
    escape_controls,
    in_python,
)
from vitlab.units import clock

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

PAUSE = 10.0  # seconds between two lines
SILENCE = 2.0  # seconds before something that takes long is named
LEAST, MOST = 6, 40  # columns of the bar
GAP = "  "
LOG = logging.getLogger("vitlab")
QUIET = ContextVar("quiet", default=False)
F = TypeVar("F", bound=Callable[..., Any])
MODEL = "a model is needed: vitlab.load(...), vitlab.create(...) or a run's .model"
PLACE = (str, os.PathLike, type(None))  # of what a run writes; None for a new folder
NEEDED = {  # by the type of an argument
    "Recipe": "a Recipe is needed: vitlab.recipe(...)",
    "Model": MODEL,
    "Module": MODEL,
    "Sequence": "a list is needed",
    "str": "a name is needed",
}


class ToStderr(logging.Handler):
    """Prints messages as they are, unless the program's own logging prints them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one, but of a quiet call only warnings."""
        own = [getattr(each, "stream", None) for each in logging.getLogger().handlers]
        muted = QUIET.get() and record.levelno < logging.WARNING
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


def public(**needed: type | tuple[type, ...]) -> Callable[[F], F]:
    """Check the types of some arguments of a function, and obey its `quiet=True`.

    Calling it raises OptionError in one line that says what is needed, and DiskError for what the
    system refuses and a person can mend. What a function that trains refuses names its arguments in
    Python, in place of options.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            found = signature.bind_partial(*given, **named).arguments
            for name, kinds in needed.items():
                if name in found and not isinstance(found[name], kinds):
                    kind = (kinds if isinstance(kinds, tuple) else (kinds,))[0].__name__
                    raise OptionError(
                        f"{name} is of type {type(found[name]).__name__}, but {NEEDED[kind]}"
                    )
            before = QUIET.set(QUIET.get() or bool(named.get("quiet")))
            try:
                return function(*given, **named)
            except UserError as error:
                if "host" in signature.parameters and not BY_COMMAND.get():
                    error.args = (in_python(str(error), signature.parameters),)
                raise
            except (OSError, RuntimeError, UnicodeEncodeError) as error:
                raise as_user_error(error) from error.__cause__
            finally:
                QUIET.reset(before)

        return cast(F, call)

    return decorate


@contextmanager
def named_if_slow(what: str, shown: bool = True) -> Iterator[None]:
    """Say what is being done if the block takes more than two seconds.

    Args:
        what: in words: `reading 12,000 files`
        shown: whether to say anything; of several processes only one does
    """
    timer = threading.Timer(SILENCE, say, [f"{what} …"])
    timer.daemon = True
    if shown and not QUIET.get():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def terminal_width() -> int | None:
    """Return the columns of the terminal that stderr is; None if it is none, or cannot redraw."""
    if not sys.stderr.isatty():
        return None
    console = _console()
    return None if console.is_dumb_terminal else console.width


class Meter:
    """Shows how much of some work is done.

    Args:
        total: number of steps
        done: steps done before
        title: what is counted, or being done
        shown: whether to show anything; of several processes only one does
    """

    def __init__(
        self, total: int, done: int = 0, title: str = "training", shown: bool = True
    ) -> None:
        self.total, self.done, self.title = total, done, title
        self.shown = shown = shown and not QUIET.get()
        self.first, self.start, self.note = done, time.monotonic(), ""
        self.last = self.start
        self.live = self._live() if shown and terminal_width() is not None else None

    def __enter__(self) -> Self:
        """Start to show it."""
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the terminal."""
        if self.live:
            self.live.stop()

    def show(self, done: int, note: str, total: int | None = None) -> None:
        """Show the number of steps done.

        Args:
            done: steps done
            note: how it goes, in parts with two spaces between them, the most important one first
            total: number of steps, if it has changed
        """
        self.total = total or self.total
        self.done, self.note = done, note
        now = time.monotonic()
        if self.shown and not self.live and now - self.last >= PAUSE and done > self.first:
            self.say(GAP.join([self.head, *note.split(GAP), self.left]))

    def images(self, done: int, total: int) -> None:
        """Show the number of images done, as a pass over them tells it."""
        self.show(done, "images", total)

    def say(self, text: str) -> None:
        """Print a line of text, above the bar where there is one."""
        if self.shown:
            self.last = time.monotonic()
            say(text)

    @property
    def head(self) -> str:
        """What is done, of how much."""
        return f"{self.title} {self.done:,}/{self.total:,}"

    @property
    def left(self) -> str:
        """How long the rest will take, at the pace so far."""
        steps = self.done - self.first
        if not steps:
            return "-:-- left"
        passed = time.monotonic() - self.start
        return f"{clock((self.total - self.done) * passed / steps)} left"

    def _live(self) -> "Live":
        from rich.live import Live

        return Live(
            get_renderable=self._bar, console=_console(), transient=True, redirect_stdout=False
        )

    def _bar(self) -> "Text":
        from rich.text import Text

        console = _console()
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
