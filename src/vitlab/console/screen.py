"""Output to a terminal: control characters in names are escaped, whoever prints them.

The names of files, classes, columns and models, and what libraries say of them, come from anybody.
A terminal obeys escapes among them: it recolors, erases and retitles, or shows text backwards.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from vitlab.errors import escape_controls


class Screen:
    """A stream that escapes control characters but ends of lines and tabs.

    Args:
        stream: that is written to
        kept: control characters that reach it

    Attributes:
        rich_proxied_file: the stream, to which Rich, which draws by escapes, writes past this
    """

    def __init__(self, stream: TextIO, kept: str) -> None:
        self.rich_proxied_file = stream
        self.kept = kept

    def write(self, text: str) -> int:
        """Write a text; return its characters."""
        self.rich_proxied_file.write(escape_controls(text, self.kept))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def __eq__(self, other: object) -> bool:
        """Whether both write to the same stream: a handler of `logging` may have it bare."""
        own = other.rich_proxied_file if isinstance(other, Screen) else other
        return own is self.rich_proxied_file

    def __hash__(self) -> int:
        return hash(self.rich_proxied_file)


@contextmanager
def screen_output() -> Iterator[None]:
    """Let nothing but text reach stdout and stderr within the block."""
    out = sys.stdout
    err = sys.stderr
    sys.stdout = cast(TextIO, Screen(out, "\n\t"))
    sys.stderr = cast(TextIO, Screen(err, "\n\t\r"))  # libraries' progress goes back in its line
    try:
        yield
    finally:
        sys.stdout = out
        sys.stderr = err
