"""The errors a caller can catch. Each is one line that says what is wrong and what would work.

    UserError (ValueError)      anything the user can fix; the command line exits with status 2
    ├── OptionError             a name, field or value that cannot be
    ├── DataError               images, labels or a data set that cannot be used
    │   └── ImageError          one image that cannot be decoded
    ├── SourceError             images on another machine that did not come
    │   └── RefusedError        those that it refuses for good, or does not have
    ├── WeightsError            a file of weights that cannot be read, represented or matched
    │   └── HubError            what the Hugging Face Hub did not give or take
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

import errno
import re
import unicodedata

# What a person can mend of what the system refuses: permission, space, and the length of a name.
MENDABLE = ("EACCES", "EROFS", "ENOSPC", "EDQUOT", "ENAMETOOLONG", "ELOOP")
UNSEEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of pairs, ends of lines
# What a terminal obeys and does not show: C0, DEL, C1, ends of lines, turns of the direction.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


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


def escaped(text: str, kept: str = "\n\t") -> str:
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


class RunError(UserError):
    """A run folder that cannot be used, or a run that cannot go on."""


class DivergedError(RunError):
    """Training diverged: a loss or gradient is not finite."""


class DiskError(UserError):
    """A file that cannot be written, or that the system refuses."""


def as_user_error(error: BaseException) -> BaseException:
    """Return what a person can mend of what the system refuses in one line; others as they are."""
    if isinstance(error, OSError) and errno.errorcode.get(error.errno or 0) in MENDABLE:
        reason = str(error.strerror).lower()
        return DiskError(f"{error.filename}: {reason}" if error.filename else reason)
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # pathlib's, of `~name`
        return DiskError("a name begins with ~ and a user that is not known here")
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
