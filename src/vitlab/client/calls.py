"""Requests of a client: one description of each, which `Client` and `AsyncClient` both drive.

An exchange is a generator. It yields requests to be sent, perhaps after a pause, and is sent what
came of each; whoever drives it has the network and the clock.
"""

import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.client.reading import (
    Reply,
    answers,
    body_of,
    features,
    reason,
    refused,
    said_by,
    unreadable,
)
from vitlab.client.sendable import encoded
from vitlab.data.sources.pictures import Picture, several
from vitlab.errors import BusyError, ImageError, LateError, OptionError, ServiceError
from vitlab.evaluation.classification import Answer
from vitlab.options import Options, above, at_least, at_most, option

T = TypeVar("T")
R = TypeVar("R")
MOST_WAIT = 10.0  # seconds between two tries, whatever the service asks for
MOST_BYTES = 12 * 2**20  # of the images of one request, where more than one is in it
Read = Callable[[dict[str, Any], Sequence[str], str], list[T | ImageError]]


@dataclass(frozen=True, kw_only=True)
class Terms(Options):
    """How long a client waits, how often it tries, and how much it asks at a time.

    Raises:
        OptionError: a value that cannot be.
    """

    timeout: float = option(60.0, "most seconds for a request with all its tries", above(0))
    retries: int = option(2, "most tries after the first", at_least(0))
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
    """Wait, then send a request, and return a `Reply` or a `Fault` within some seconds.

    Attributes:
        ask: the request
        seconds: for all of it, without the pause
        after: the pause, in seconds
    """

    ask: Ask
    seconds: float
    after: float = 0.0


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


Steps = Generator[Send, Reply | Fault, T]


def advance(steps: Steps[T], result: Reply | Fault | None = None) -> tuple[Send | None, T | None]:
    """Return the next request of an exchange; or none, and what came of all of them."""
    try:
        return (next(steps) if result is None else steps.send(result)), None
    except StopIteration as done:
        return None, done.value


def exchange(
    ask: Ask, place: str, terms: Terms, now: Callable[[], float] = time.monotonic
) -> Steps[Reply]:
    """Send a request until there is a reply that no other try would change.

    A full queue (503), a proxy without its service (502) and a broken connection are tried again:
    after the seconds of Retry-After, else after 0.1 s, doubled each time, and up to half as much
    more, so that clients that were refused together do not come again together. Every request of
    this package may be sent twice, because none changes anything.

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
    until, tries, wait = now() + terms.timeout, 0, 0.0
    while True:
        result = yield Send(ask, max(until - now() - wait, 0.001), wait)
        tries += 1
        if isinstance(result, Reply) and result.status not in (502, 503):
            return result
        asked = seconds_of(result.retry_after) if isinstance(result, Reply) else 0.0
        growing = min(0.1 * 2.0 ** min(tries - 1, 16), MOST_WAIT)
        wait = max(asked, growing) * random.uniform(1, 1.5)
        never = isinstance(result, Fault) and result.kind != "broken"
        if never or tries > terms.retries or now() + wait >= until:
            raise given_up(result, place, tries, terms)


def seconds_of(header: str) -> float:
    """Return the seconds of a Retry-After; 1 if it is a date or anything else."""
    if not header:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        return 1.0
    return seconds if 0 <= seconds < 86400 else 1.0


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


@dataclass(frozen=True)
class Plan(Generic[T, R]):
    """Exchanges that may run at the same time, and what becomes of what they find.

    Attributes:
        parts: each finds the same for some of the images, in order
        join: from what was found for all of them to the result
    """

    parts: list[Steps[list[T | ImageError]]]
    join: Callable[[list[T | ImageError]], R]


@dataclass(frozen=True)
class File:
    """An image as it is sent: its number within its part, its name and its bytes."""

    number: int
    name: str
    data: bytes


@dataclass(frozen=True)
class Calls:
    """What can be asked of the service at one address.

    Attributes:
        place: the address, for messages
        token: whether requests carry one
        terms: how long to wait, how often to try, how much to ask at a time
    """

    place: str
    token: bool
    terms: Terms

    def predict(
        self, images: Picture | Iterable[Picture], model: str, top: int
    ) -> Plan[Answer, Answer | list[Answer]]:
        """Plan the likeliest classes: one answer for one image, a list for several.

        Raises:
            OptionError: `top` is not at least 1.
        """
        if top < 1:
            raise OptionError(f"top must be at least 1, not {top}")
        single, named = alone(images), listed(images)

        def join(found: list[Answer | ImageError]) -> Answer | list[Answer]:
            if single:
                return sound(found[0])
            return [_answer(name, one) for (name, _), one in zip(named, found, strict=True)]

        ask = Ask("predict", (("top", str(top)), *_chosen(model)))
        return Plan([self._part(ask, part, answers) for part in self._parts(named)], join)

    def features(
        self, images: Picture | Iterable[Picture], model: str
    ) -> Plan[NDArray[np.float32], NDArray[np.float32]]:
        """Plan the features: (n, features)."""
        ask = Ask("features", _chosen(model))
        parts = [self._part(ask, part, features) for part in self._parts(listed(images))]
        return Plan(parts, lambda found: np.stack([sound(each) for each in found]))

    def get(self, path: str) -> Steps[dict[str, Any]]:
        """Ask for an object that is about no image.

        Raises:
            ServiceError: no answer, or one that is not good.
        """
        reply = yield from exchange(Ask(path), self.place, self.terms)
        if reply.status != 200:
            raise refused(reply, self.place, self.token)
        return body_of(reply, self.place)

    def _parts(self, named: list[tuple[str, Picture]]) -> Iterator[list[tuple[str, Picture]]]:
        size = self.terms.batch
        return (named[start : start + size] for start in range(0, len(named), size))

    def _part(
        self, ask: Ask, named: list[tuple[str, Picture]], read: Read[T]
    ) -> Steps[list[T | ImageError]]:
        """Ask about some images, in one request unless they are large."""
        found: list[Any] = [_tried(*each) for each in enumerate(named)]
        for group in _by_size([each for each in found if isinstance(each, File)]):
            results = yield from self._asked(ask, group, read)
            for file, result in zip(group, results, strict=True):
                found[file.number] = result
        return found

    def _asked(self, ask: Ask, files: list[File], read: Read[T]) -> Steps[list[T | ImageError]]:
        """Ask about images; about the halves where the service refuses them together."""
        whole = replace(ask, images=tuple(file.data for file in files))
        reply = yield from exchange(whole, self.place, self.terms)
        if reply.status == 200:
            names = [file.name for file in files]
            return read(body_of(reply, self.place), names, self.place)
        if reply.status not in (413, 422):
            raise refused(reply, self.place, self.token)
        if len(files) == 1:
            return [unreadable(files[0].name, reason(reply, self.place))]
        middle = len(files) // 2
        first = yield from self._asked(ask, files[:middle], read)
        return first + (yield from self._asked(ask, files[middle:], read))


def alone(images: Picture | Iterable[Picture]) -> bool:
    """Whether this is one image, not a list or a batch of them."""
    one = isinstance(images, str | Path | bytes | Image.Image)
    return one or getattr(images, "ndim", 4) < 4


def listed(images: Picture | Iterable[Picture]) -> list[tuple[str, Picture]]:
    """Return images with what to call them: the path of a file, or the number of another.

    Raises:
        DataError: no images.
    """
    return [
        (str(each) if isinstance(each, str | Path) else f"image {number}", each)
        for number, each in enumerate(several(images))
    ]


def sound(found: T | ImageError) -> T:
    """Return what was found for an image.

    Raises:
        ImageError: it is an error.
    """
    if isinstance(found, ImageError):
        raise found
    return found


def _answer(name: str, found: Answer | ImageError) -> Answer:
    return Answer(name, error=str(found)) if isinstance(found, ImageError) else found


def _chosen(model: str) -> tuple[tuple[str, str], ...]:
    return (("model", model),) if model else ()


def _tried(number: int, named: tuple[str, Picture]) -> File | ImageError:
    name, picture = named
    try:
        return File(number, name, encoded(picture, name))
    except ImageError as error:
        return error


def _by_size(files: list[File]) -> Iterator[list[File]]:
    """Split files so that those of one request have at most `MOST_BYTES` together."""
    group: list[File] = []
    for file in files:
        if group and sum(len(each.data) for each in group) + len(file.data) > MOST_BYTES:
            yield group
            group = []
        group.append(file)
    if group:
        yield group
