"""The errors a caller can catch. Each is one line that says what is wrong and what would work.

    UserError (ValueError)      anything the user can fix; the command line exits with status 2
    ├── OptionError             a name, field or value that cannot be
    ├── DataError               images, labels or a data set that cannot be used
    │   └── ImageError          one image that cannot be decoded
    ├── SourceError             images on another machine that did not come
    │   └── RefusedError        those that it refuses for good, or does not have
    ├── WeightsError            a file of weights that cannot be read, represented or matched
    │   └── HubError            what the Hugging Face Hub did not give or take
    │       └── UnreachableError    it does not answer, or is busy: another time it may
    ├── RunError                a run folder that cannot be used, or a run that cannot go on
    │   └── DivergedError       a loss or gradient that is not finite
    ├── DiskError               a file that cannot be written, or that the system refuses
    ├── DeviceError             a device that is missing or out of memory
    ├── ServiceError            what a service did not answer
    │   ├── BusyError           its queue is full
    │   └── LateError           no answer within the time allowed
    └── PackageError            an optional package that is not installed

`vitlab.UserError` catches them all; nothing else is raised for what a user can fix.
"""

import codecs
import errno
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# What a person can mend of what the system refuses: permission, space, and the length of a name.
MENDABLE = ("EACCES", "EROFS", "ENOSPC", "EDQUOT", "ENAMETOOLONG", "ELOOP")
UNSEEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of pairs, ends of lines
# What a terminal obeys and does not show: C0, DEL, C1, ends of lines, turns of the direction.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


BY_COMMAND = ContextVar("by_command", default=False)  # whether the command line reads the messages


@contextmanager
def read_by_command() -> Iterator[None]:
    """Leave messages as the command line says them, within a block or a function."""
    before = BY_COMMAND.set(True)
    try:
        yield
    finally:
        BY_COMMAND.reset(before)


class UserError(ValueError):
    """Something the user can fix: one line that says what is wrong and what would work.

    The command line prints it and exits with status 2; from Python it is a `ValueError`.

    Attributes:
        quiet: another process of the same run has told the user already
        status: with which the command line exits
    """

    quiet = False
    status = 2

    def __init__(self, *args: object) -> None:
        """Keep one line: names in other people's files may hold anything."""
        super().__init__(*(one_line(arg) if isinstance(arg, str) else arg for arg in args))


def one_line(text: str) -> str:
    r"""Return a text whose control characters and ends of lines are escaped, as `\n`."""
    if text.isprintable():
        return text
    return "".join(
        repr(char)[1:-1] if unicodedata.category(char) in UNSEEN or CONTROL.match(char) else char
        for char in text
    )


WORD, LINE = 300, 2000  # characters of a word, and of a line, that are shown


def cut_long(text: str) -> str:
    """Return a line in which a very long word, or the middle of a very long line, is left out.

    What an argument or a file holds may be repeated in it; what is wrong, and what would work,
    stand before it and behind it.
    """
    words = " ".join(_cut(word, WORD) for word in text.split())
    return _cut(words, LINE)


def _cut(text: str, most: int) -> str:
    """Return a text without its middle, if it has more characters than that."""
    start = 2 * most // 3
    end = most // 4
    return text if len(text) <= most else f"{text[:start]}...{text[-end:]}"


ODD = re.compile(r"\\ud[89a-f][0-9a-f]{2}|[^\x00-\x7f]|'ascii' codec")  # in a message


def remedy_of(name: str) -> str:
    """Return what makes Unicode of a name that is none: another name, or another locale."""
    if is_utf8_read_otherwise(name):
        return locale_line()
    return "rename it"


def is_utf8_read_otherwise(name: str) -> bool:
    """Return whether a file's name is UTF-8, which this locale reads as something else."""
    try:
        return not reads_utf8() and bool(os.fsencode(name).decode("utf-8"))
    except UnicodeError:
        return False


def reads_utf8() -> bool:
    """Return whether names of files are read as UTF-8, as everywhere but in old locales."""
    return codecs.lookup(sys.getfilesystemencoding()).name == "utf-8"


def locale_line() -> str:
    """Return why names of files look odd where the locale does not read them as UTF-8."""
    named = next((key for key in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(key)), "LC_ALL")
    locale = f"the locale ({named}={os.environ.get(named, '')})"
    return f"{locale} reads file names as {sys.getfilesystemencoding()}: set PYTHONUTF8=1"


def escape_controls(text: str, kept: str = "\n\t") -> str:
    r"""Return a text of any length whose control characters are escaped, as `\x1b` or `\u009b`.

    What JSON may hold as it is becomes an escape of JSON, so that JSON stays JSON.

    Args:
        text: of several lines
        kept: control characters that stay
    """

    def escape(found: re.Match[str]) -> str:
        char = found[0]
        if char in kept:
            return char
        return f"\\x{ord(char):02x}" if char < " " else f"\\u{ord(char):04x}"

    return CONTROL.sub(escape, text)


class OptionError(UserError):
    """A name, field or value that cannot be."""


class DataError(UserError):
    """Images, labels or a data set that cannot be used."""


class ImageError(DataError):
    """One image that cannot be decoded."""


class SourceError(UserError):
    """Images on another machine that did not come, though it was asked again and again.

    No `DataError`: nothing is known of the images, so that none of them is damaged or left out.
    """

    status = 75


class RefusedError(SourceError):
    """Images that another machine refuses for good, or does not have."""

    status = 2


class WeightsError(UserError):
    """A file of weights that cannot be read, represented in a format, or matched to a model."""


class HubError(WeightsError):
    """What the Hugging Face Hub did not give or take."""


class UnreachableError(HubError):
    """The Hugging Face Hub does not answer, or is busy: another time it may."""

    status = 75


class RunError(UserError):
    """A run folder that cannot be used, or a run that cannot go on."""


class DivergedError(RunError):
    """Training diverged: a loss or gradient is not finite."""


class DiskError(UserError):
    """A file that cannot be written, or that the system refuses."""


def as_user_error(error: BaseException) -> BaseException:
    """Return what a person can mend of what the system refuses in one line; others as they are.

    So also a name that is not Unicode, where text is written.
    """
    if isinstance(error, OSError) and errno.errorcode.get(error.errno or 0) in MENDABLE:
        reason = str(error.strerror).lower()
        return DiskError(f"{error.filename}: {reason}" if error.filename else reason)
    if isinstance(error, OSError) and "No usable temporary directory" in str(error):  # tempfile's
        return DiskError("no folder for temporary files can be written: set TMPDIR to one that can")
    if isinstance(error, OSError) and "MPLCONFIGDIR" in str(error):  # Matplotlib's, without both
        return DiskError("Matplotlib finds no folder for its cache: set MPLCONFIGDIR or TMPDIR")
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # pathlib's, of `~name`
        return DiskError("a name begins with ~ and a user that is not known here")
    if isinstance(error, UnicodeEncodeError) and "\ud800" <= error.object[error.start] <= "\udfff":
        name = re.split(r"[\n\"]", error.object[: error.end])[-1]
        name += re.split(r"[\n\"]", error.object[error.end :])[0]
        return DataError(f"the name {name[:60]!r} is not Unicode: {remedy_of(name)}")
    return error


class DeviceError(UserError):
    """A device that is missing or out of memory."""


class ServiceError(UserError):
    """What a service did not answer, or answered with an error."""


class BusyError(ServiceError):
    """The queue of a service is full.

    Attributes:
        retry_after: seconds after which it is worth another try
    """

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        """Keep when to try again."""
        super().__init__(message)
        self.retry_after = retry_after


class LateError(ServiceError):
    """A service gave no answer within the time allowed."""


class FailedError(ServiceError):
    """A service failed to compute an answer, which its log describes."""


class PackageError(UserError):
    """An optional package that is not installed."""
