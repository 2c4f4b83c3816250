"""Replies of a service as answers, features and errors."""

import base64
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypedDict, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.decode.headers import explained_image
from vitlab.errors import ImageError, LateError, OptionError, ServiceError
from vitlab.evaluation.classified_image import ClassifiedImage

T = TypeVar("T")
MOST_SAID = 300  # characters of the words of a service in a message
_SENT = re.compile(r"^image( \d+)?: ")  # how the service calls what this client sends


# An object in an image; its box is left, top, right and bottom in pixels.
FoundObject = TypedDict(
    "FoundObject", {"class": str, "probability": float, "box": tuple[float, ...]}
)


@dataclass(frozen=True)
class HeadAnswer(ClassifiedImage):
    """What a run that segments, detects or regresses says of an image; None of what it does not.

    Attributes:
        shares: of the pixels, by class, the largest first
        mask: uint8 or uint16 (rows, columns) of the image: the numbers of the training masks
        objects: likeliest first
        values: by target, in its units; deviations: likewise
    """

    shares: dict[str, float] | None = None
    mask: NDArray[Any] | None = field(default=None, compare=False)
    objects: tuple[FoundObject, ...] | None = None
    values: dict[str, float] | None = None
    deviations: dict[str, float] | None = None

    @classmethod
    def read(cls, image: str, found: dict[str, Any]) -> Self:
        """Return the answer in what a service says of an image."""
        tables: dict[str, Any] = {
            key: {str(name): float(value) for name, value in found[key].items()}
            for key in ("shares", "values", "deviations")
            if found.get(key) is not None
        }
        if "objects" in found:
            rows = [each | {"box": tuple(map(float, each["box"]))} for each in found["objects"]]
            return cls(image, objects=cast(tuple[FoundObject, ...], tuple(rows)))
        if "values" in found:
            return cls(image, **tables)
        stream = io.BytesIO(base64.b64decode(found["mask"], validate=True))
        with explained_image("mask"), Image.open(stream, formats=("PNG",)) as opened:
            return cls(image, mask=np.array(opened), **tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON holds it, without the mask."""
        names = ("shares", "objects", "values", "deviations")
        found = {name: own for name in names if (own := getattr(self, name)) is not None}
        return {"image": self.image} | found


@dataclass(frozen=True)
class Reply:
    """What a service answered.

    Attributes:
        status: of HTTP
        body: as it came
        retry_after: the header, "" without one
    """

    status: int
    body: bytes
    retry_after: str = ""


def parsed(reply: Reply) -> dict[str, Any]:
    """Return the object of a reply, empty if it is none."""
    try:
        body = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def said_by(reply: Reply) -> str:
    """Return the error in a reply, empty if it has none."""
    text = parsed(reply).get("error")
    return text[:MOST_SAID] if isinstance(text, str) else ""


def value_of(reply: Reply, key: str, place: str) -> Any:
    """Return a value of the object of a reply.

    Raises:
        ServiceError: there is none, so that something else answers at this address.
    """
    if key in (body := parsed(reply)):
        return body[key]
    start = reply.body[:60].decode("utf-8", "replace")
    raise ServiceError(
        f"{place} does not answer as a service of vitlab does (status {reply.status}, "
        f"{start!r}): check the address and the port"
    )


def reason(reply: Reply, place: str) -> str:
    """Return why a service refused something, in its words or those for its proxy.

    Raises:
        ServiceError: it is another kind of reply.
    """
    text = said_by(reply)
    if not text and reply.status in (408, 413, 504):
        return f"status {reply.status} from its proxy"
    request = value_of(reply, "request", place)
    return f"{text} (request {request})" if reply.status >= 500 else text


def refused(reply: Reply, place: str, token: bool) -> Exception:
    """Return the error of a reply that is not good, other than for one image or one model."""
    said = said_by(reply)  # empty from a proxy, which does not answer in our form
    if reply.status == 401 or (reply.status == 403 and ("token" in said or not said)):
        needs = f"needs a token: Client({place!r}, token=…)"
        return ServiceError(
            f"the service at {place} {'does not accept this token' if token else needs}"
        )
    text = reason(reply, place)
    if reply.status in (408, 504):
        return LateError(f"the service at {place} took too long: {text}")
    if reply.status == 404 and "model" in text:
        return OptionError(text)
    return ServiceError(f"the service at {place} answered with status {reply.status}: {text}")


def unreadable(name: str, text: str) -> ImageError:
    """Return the error of an image by the caller's name for it, not by the one it was sent with."""
    return ImageError(f"{name}: {_SENT.sub('', text, count=1)}")


def answers(
    body: dict[str, Any], names: Sequence[str], place: str
) -> list[ClassifiedImage | ImageError]:
    """Return what /predict says about each image."""

    def one(name: str, found: dict[str, Any]) -> ClassifiedImage:
        if "top" not in found:
            return HeadAnswer.read(name, found)
        top = tuple((str(each["class"]), float(each["probability"])) for each in found["top"])
        several = found.get("predicted")
        predicted = None if several is None else tuple(map(str, several))
        distance = float(found.get("distance", ClassifiedImage.distance))
        return ClassifiedImage(name, top, predicted=predicted, distance=distance)

    return _each(body, "predictions", names, place, one)


def features(
    body: dict[str, Any], names: Sequence[str], place: str
) -> list[NDArray[np.float32] | ImageError]:
    """Return what /features says about each image: (features,) each."""
    rows, bad = body.get("features"), body.get("errors")
    if isinstance(rows, list) and isinstance(bad, list):
        left = iter(bad)  # an entry per row that is null, in their order
        body = body | {"features": [next(left, None) if row is None else row for row in rows]}

    def one(name: str, row: list[float]) -> NDArray[np.float32]:
        return np.array([float(number) for number in row], np.float32)

    return _each(body, "features", names, place, one)


def _each(
    body: dict[str, Any], key: str, names: Sequence[str], place: str, one: Callable[[str, Any], T]
) -> list[T | ImageError]:
    """Read a list with an entry per image, some of which may be errors."""
    entries = body.get(key)
    if not isinstance(entries, list) or len(entries) != len(names):
        raise ServiceError(
            f"{place} did not answer for each of {len(names)} images ({key} missing): check the "
            "address and the port"
        )
    result: list[T | ImageError] = []
    for name, entry in zip(names, entries, strict=True):
        if isinstance(entry, dict) and "error" in entry:
            result.append(unreadable(name, str(entry["error"])))
            continue
        try:
            result.append(one(name, entry))
        except (AttributeError, KeyError, OSError, TypeError, ValueError):
            text = json.dumps(entry)[:60]
            raise ServiceError(
                f"{place} answered what this version does not understand: {text}"
            ) from None
    return result
