"""What a client can ask, as exchanges that any transport can drive."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.client.attempts import Ask, Reply, Steps, Terms, Work, exchange
from vitlab.client.reading import answers, body_of, features, reason, refused, unreadable
from vitlab.client.sendable import encoded
from vitlab.data.sources.pictures import Picture, several
from vitlab.errors import ImageError, OptionError
from vitlab.evaluation.classification import Answer

T = TypeVar("T")
R = TypeVar("R")
MOST_BYTES = 12 * 2**20  # of the images of one request, where more than one is in it
Read = Callable[[dict[str, Any], Sequence[str], str], list[T | ImageError]]


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
        found: list[Any] = yield Work(lambda: [_tried(*each) for each in enumerate(named)])
        for group in _by_size([each for each in found if isinstance(each, File)]):
            results = yield from self._asked(ask, group, read)
            for file, result in zip(group, results, strict=True):
                found[file.number] = result
        return found

    def _asked(self, ask: Ask, files: list[File], read: Read[T]) -> Steps[list[T | ImageError]]:
        """Ask about images; about the halves where the service refuses them together."""
        whole = replace(ask, images=tuple(file.data for file in files))
        reply: Reply = yield from exchange(whole, self.place, self.terms)
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
