"""What libtiff writes on stderr: lines without the image's name, about data that is damaged.

Pillow turns off the library's warnings, not its errors, after many of which it decodes on and fills
up with black. Here they are an error of the image.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vitlab.errors import ImageError

STDERR = 2
# `Fax4Decode: Bad code word at line 55 of strip 0 (x 94).`
_LINE = re.compile(rb"(?!vitlab)[A-Za-z_][\w.]*: [^\n]+\.\n?")
_MOST = 2**16  # bytes that are looked at


@contextmanager
def complaints_are_errors() -> Iterator[None]:
    """Keep a library's lines from the user's terminal; the first of them is an error.

    What other threads write in the meantime is written afterwards.

    Raises:
        ImageError: the library complained.
    """
    try:
        terminal = os.dup(STDERR)
    except OSError:  # there is none
        yield
        return
    found: list[bytes] = []
    with tempfile.TemporaryFile() as file:
        with suppress(OSError, ValueError, AttributeError):  # Python's own may be closed
            sys.stderr.flush()
        os.dup2(file.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(terminal, STDERR)
            os.close(terminal)
            file.seek(0)
            said = file.read(_MOST).splitlines(keepends=True)
            found += [line for line in said if _LINE.fullmatch(line)]
            with suppress(OSError):
                os.write(STDERR, b"".join(line for line in said if line not in found))
    if found:
        raise ImageError(f"damaged TIFF ({found[0].decode('utf-8', 'replace').strip()[:200]})")
