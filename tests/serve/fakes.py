"""An engine without a model: the signatures of the real one, and answers at once or on command."""

import asyncio
import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vitlab.errors import BusyError, OptionError, ServiceError, UserError
from vitlab.serve.answers import Seen
from vitlab.serve.limits import Limits
from vitlab.serve.metrics import Metrics
from vitlab.serve.registry import ServedModel

CLASSES = ("cat", "dog", "<b>owl</b>")
FOUND: dict[str, dict[str, Any]] = {
    "masks": {"shares": {"dog": 0.75, "<b>owl</b>": 0.25}},
    "boxes": {
        "objects": [
            {"class": "<b>owl</b>", "probability": 0.9, "box": [3.0, 2.0, 9.0, 7.0]},
            {"class": "cat", "probability": 0.2, "box": [0.0, 0.0, 12.0, 10.0]},
        ]
    },
    "numbers": {"values": {"age": 41.5, "height": 170.25}, "deviations": {"age": 2, "height": 3}},
}


def png(color: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (12, 10)) -> bytes:
    """A small picture of one color."""
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, "PNG")
    return stream.getvalue()


def palette_png(shape: tuple[int, ...]) -> bytes:
    """A mask of an image: number 1, and 2 in the right quarter."""
    numbers, stream = np.ones(shape[:2], np.uint8), io.BytesIO()
    numbers[:, 3 * shape[1] // 4 :] = 2
    mask = Image.fromarray(numbers)
    mask.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    mask.save(stream, "PNG")
    return stream.getvalue()


def card(name: str, several: bool = False, attention: bool = True) -> ServedModel:
    """What the fake says of a model; one named after a kind of answers gives them."""
    answers: Any = {"answers": name} if name in FOUND else {}
    return ServedModel(
        name=name,
        model="ViT-Ti/16",
        classes=CLASSES,
        image_size=(32, 32),
        features=4,
        several=several,
        thresholds=(0.5, 0.5, 0.5) if several else (),
        trunk="",
        bytes=1000,
        added=1.0,
        attention=attention,
        numbers=(0, 1, 2) if name == "masks" else (),
        targets=("age", "height") if name == "numbers" else (),
        **answers,
    )


@dataclass(frozen=True, eq=False)
class FakeServed:
    """A model as the fake serves it."""

    card: ServedModel


class FakeEngine:
    """Sees the mean color of an image as the probabilities of three classes.

    Args:
        error: raised by every answer
        gate: what an answer waits for

    Attributes:
        checked: requests that have begun
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        error: Exception | None = None,
        gate: asyncio.Event | None = None,
        names: Sequence[str] = ("first", "labels"),
    ) -> None:
        self.limits, self.error, self.gate = limits or Limits(), error, gate
        self.models = {name: FakeServed(card(name, several=name == "labels")) for name in names}
        self.ready, self.stopped, self.trouble = True, False, ""
        self.allow_empty = True
        self.asked: list[tuple[int, str, str]] = []
        self.checked = 0
        self.sources: dict[str, object] = {}
        self.metrics, self.busy, self.crowd = Metrics(), "", 0.0
        self.metrics.gauge("ready", "ready", lambda: self.ready)
        self.read: Callable[[object], object] = lambda source: source

    def add(self, name: str, source: object, *, replace: bool = False) -> None:
        if (name in self.models) is not replace:
            raise OptionError(f"there is a model {name!r} already, or none")
        self.sources[name] = self.read(source)
        self.models = self.models | {name: FakeServed(card(name))}

    def put(self, name: str, source: object) -> bool:
        old = name in self.models
        self.add(name, source, replace=old)
        return old

    def remove(self, name: str) -> None:
        if name not in self.models:
            raise OptionError(f"unknown model {name!r}")
        self.models = {key: each for key, each in self.models.items() if key != name}

    def cards(self) -> list[ServedModel]:
        return [each.card for each in self.models.values()]

    async def start(self) -> None:
        self.ready = True

    async def stop(self) -> None:
        self.ready, self.stopped = False, True

    def crowded(self, under_way: int) -> float:
        return self.crowd

    def check(self, images: int, served: FakeServed, what: str) -> None:
        self.checked += 1
        if self.busy:
            raise BusyError(self.busy, 3)

    async def answer(
        self, images: Sequence[bytes], served: FakeServed, what: str = "classes"
    ) -> list[Seen]:
        self.asked.append((len(images), served.card.name, what))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        if not self.ready:
            raise ServiceError("the service is stopping")
        return [self._seen(image, what, served.card) for image in images]

    def _seen(self, image: bytes, what: str, card: ServedModel) -> Seen:
        try:
            with Image.open(io.BytesIO(image)) as opened:
                pixels = np.asarray(opened.convert("RGB"), np.float64) + 1
        except (OSError, SyntaxError, ValueError) as error:
            assert not isinstance(error, UserError)
            return Seen(error="cannot be decoded")
        if card.answers in FOUND:
            mask = {"mask": base64.b64encode(palette_png(pixels.shape)).decode()}
            return Seen(found=FOUND[card.answers] | (mask if card.answers == "masks" else {}))
        mean = pixels.mean((0, 1))
        if what == "features":
            return Seen(features=np.array([*mean, 1.0], np.float32))
        shares = mean / mean.sum()
        looked = np.array([[0, 0.5], [1, 0.25]], np.float32) if what == "attention" else None
        return Seen(probabilities=shares, attention=looked, box=(0, 0, 1, 0.5))
