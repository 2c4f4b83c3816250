"""Errors as responses: which status each has, and the one line that a client reads."""

import math
from collections.abc import Mapping

from vitlab.errors import (
    BusyError,
    FailedError,
    LateError,
    OptionError,
    ServiceError,
    UserError,
    one_line,
)

LONGEST = 500  # characters of a message


class Refused(Exception):  # noqa: N818  a response, not a failure of ours
    """A request that gets an error as its answer.

    Attributes:
        status: of HTTP
        message: one line for whoever sent the request
        headers: of the response
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Keep one line."""
        line = one_line(" ".join(message.split()))
        self.status, self.headers = status, dict(headers or {})
        self.message = line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
        super().__init__(self.message)


def busy(message: str, seconds: float = 1.0) -> Refused:
    """Return the answer to a request that is worth another try after some seconds."""
    return Refused(503, message, {"Retry-After": str(max(1, math.ceil(seconds)))})


def refused(error: UserError) -> Refused:
    """Return the answer for an error of the engine."""
    if isinstance(error, BusyError):
        return busy(str(error), error.retry_after)
    if isinstance(error, LateError):
        return Refused(504, str(error))
    if isinstance(error, FailedError):
        return Refused(500, f"{error}: the log describes it")
    if isinstance(error, ServiceError):
        return busy(str(error))
    return Refused(400 if isinstance(error, OptionError) else 422, str(error))
