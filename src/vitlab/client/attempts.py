"""Requests and replies without a network: when to try again, when to wait, when to give up.

An exchange is a generator. It yields what is to be done (send a request, wait, read files) and is
sent what came of it; whoever drives it has the network and the clock. `Client` and `AsyncClient`
drive the same exchanges.
"""

import json
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from vitlab.errors import BusyError, LateError, ServiceError
from vitlab.options import Options, above, at_least, at_most, option

T = TypeVar("T")
MOST_SAID = 300  # characters of the words of a service in a message
MOST_WAIT = 10.0  # seconds between two tries, whatever the service asks for


@dataclass(frozen=True, kw_only=True)
class Terms(Options):
    """How long a client waits, how often it tries, and how much it asks at a time.

    Raises:
        OptionError: a value that cannot be.
    """

    timeout: float = option(60.0, "most seconds for a request with all its tries", above(0))
    retries: int = option(8, "most tries after the first", at_least(0))
    batch: int = option(16, "most images per request", at_least(1))
    parallel: int = option(4, "most requests at a time for one list", at_least(1), at_most(64))


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        path: below the address of the service
        params: of the query
        images: one is sent as it is, several as the parts of a form
    """

    path: str
    params: tuple[tuple[str, str], ...] = ()
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Send:
    """Send a request, and return a `Reply` or a `Fault` within some seconds."""

    ask: Ask
    seconds: float


@dataclass(frozen=True)
class Pause:
    """Wait for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Call what takes time but no network, and return its result."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Reply:
    """What a service answered.

    Attributes:
        status: of HTTP
        body: as it came
        retry_after: the header, "" without one
        location: the header, "" without one
    """

    status: int
    body: bytes
    retry_after: str = ""
    location: str = ""


@dataclass(frozen=True)
class Fault:
    """Why there is no reply.

    Attributes:
        kind: no connection; no reply in time; a connection that broke; an address or an answer that
            no other try would change
        text: what the network said
    """

    kind: str  # "unreached", "late", "broken" or "refused"
    text: str


Steps = Generator[Send | Pause | Work, Any, T]


def exchange(
    ask: Ask, place: str, terms: Terms, now: Callable[[], float] = time.monotonic
) -> Steps[Reply]:
    """Send a request until there is a reply that no other try would change.

    A full queue (503), a proxy without its service (502) and a broken connection are tried again:
    after the seconds of Retry-After, else after 0.1 s, doubled each time. Every request of this
    package may be sent twice, because none changes anything.

    Args:
        ask: the request
        place: the address, for messages
        terms: how often and how long
        now: a clock, in seconds

    Returns:
        The first reply with another status, good or bad.

    Raises:
        BusyError: the queue was still full.
        LateError: no reply in time.
        ServiceError: no connection, or one that kept breaking.
    """
    until, tries = now() + terms.timeout, 0
    while True:
        result: Reply | Fault = yield Send(ask, max(until - now(), 0.001))
        tries += 1
        if isinstance(result, Reply) and result.status not in (502, 503):
            return result
        wait = wait_for(result, tries)
        if wait is None or tries > terms.retries or now() + wait >= until:
            raise given_up(result, place, tries, terms)
        yield Pause(wait)


def wait_for(result: Reply | Fault, tries: int) -> float | None:
    """Return the seconds until another try makes sense; None if it never does."""
    if isinstance(result, Fault) and result.kind != "broken":
        return None
    growing = 0.1 * 2.0 ** min(tries - 1, 16)
    asked = seconds_of(result.retry_after) if isinstance(result, Reply) else 0.0
    return min(max(asked, growing), max(asked, MOST_WAIT))


def seconds_of(header: str) -> float:
    """Return the seconds of a Retry-After; 1 if it is a date or anything else."""
    if not header:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        return 1.0
    return seconds if 0 <= seconds < 86400 else 1.0


def said_by(reply: Reply) -> str:
    """Return the error in a reply, empty if it has none."""
    try:
        text = json.loads(reply.body)["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return text[:MOST_SAID] if isinstance(text, str) else ""


def given_up(result: Reply | Fault, place: str, tries: int, terms: Terms) -> ServiceError:
    """Return the error after the last try."""
    times = f" after {tries} tries" if tries > 1 else ""
    if isinstance(result, Reply):
        state = "is busy" if result.status == 503 else "cannot be reached by its proxy"
        said = f" ({text})" if (text := said_by(result)) else ""
        return BusyError(
            f"the service at {place} {state}{times}{said}: try again later, or with more time or "
            f"tries (timeout={terms.timeout:g}, retries={terms.retries})",
            seconds_of(result.retry_after) or 1.0,
        )
    match result.kind:
        case "late":
            return LateError(
                f"the service at {place} did not answer within {terms.timeout:g} s: give a "
                "larger timeout"
            )
        case "unreached":
            return ServiceError(
                f"cannot reach a service at {place} ({result.text}): start it with `vitlab serve`, "
                "or check the address and the port"
            )
        case "broken":
            return ServiceError(f"the connection to {place} broke{times}: {result.text}")
    return ServiceError(f"no answer from {place}: {result.text}")
