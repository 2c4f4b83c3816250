"""Several decoder processes, each with one image at a time, and a queue in front of them."""

import asyncio
import json
import signal
import time
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from vitlab.data.decode.pixels import Box, Pixels
from vitlab.errors import ServiceError, one_line
from vitlab.models.config import ModelConfig
from vitlab.serve.decoding.decoder import SIZES, WHOLE, Bounds, header
from vitlab.serve.decoding.nursery import Decoder, Nursery
from vitlab.serve.queueing import Rounds
from vitlab.weights.identity import description

LONGEST = 2**14  # bytes of an answer without its pixels
ERROR = 500  # characters
GRACE = 5.0  # seconds for the messages of an image
MEMORY = 0.1  # share of the newest image in the average seconds
NONE: Pixels = np.empty((0, 0, 0), np.uint8)
Result = TypeVar("Result")
# How a process ends when an image finds a fault in a library.
FAULTS = tuple(
    -each for each in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
)


@dataclass(frozen=True)
class Decoded:
    """One image: pixels (rows, columns, channels) and where they lie in it; or why there are none.

    Attributes:
        pixels: uint8 (rows, columns, channels)
        box: left, top, right, bottom, as fractions of the upright image
        error: one line; empty for pixels
        size: rows and columns of the upright image; of a preview only
    """

    pixels: Pixels
    box: Box = WHOLE
    error: str = ""
    size: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Wanted:
    """What a model's images are decoded to; or, with `side`, a person's.

    Attributes:
        text: the configuration as JSON
        shape: rows, columns, channels; None where each image has its own
        most: bytes of an image
        side: of a preview, most rows and columns; 0 for a model's image
    """

    text: str
    shape: tuple[int, int, int] | None
    most: int
    side: int = 0

    @classmethod
    def by(cls, config: ModelConfig) -> "Wanted":
        """Return what a model wants."""
        text = json.dumps(description(replace(config, labels=())))
        shape = None if config.fit == "native" else (*config.size, config.channels)
        return cls(text, shape, config.area * config.channels)

    @classmethod
    def preview(cls, side: int) -> "Wanted":
        """Return what a person wants: the whole image in RGB, this long at most."""
        return cls("", None, 3 * side * side, side)


@dataclass(frozen=True, eq=False)
class _Job:
    data: bytes
    name: str
    wanted: Wanted
    future: asyncio.Future[Decoded]


class Decoders:
    """Decoder processes; one that ends is replaced.

    Args:
        count: of them
        bounds: of each
    """

    def __init__(self, count: int, bounds: Bounds) -> None:
        self.count, self.bounds = count, bounds
        self.pace = 0.0  # seconds that one of them takes for an image
        self.restarts = 0
        self._nursery = Nursery(bounds)
        self._jobs: Rounds[_Job] = Rounds()
        self._waiting = asyncio.Semaphore(0)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the processes.

        Raises:
            ServiceError: they cannot be started.
        """
        first = await asyncio.gather(*(self._nursery.begin() for _ in range(self.count)))
        self._tasks = [asyncio.create_task(self._work(each)) for each in first]

    async def stop(self) -> None:
        """End the processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for key in self._jobs:
            for job in self._jobs.clear(key):
                settle(job.future, ServiceError("the service is stopping"))
        await self._nursery.stop()

    async def decode(self, data: bytes, name: str, key: Hashable, wanted: Wanted) -> Decoded:
        """Decode an image when it is its turn.

        Args:
            data: of a JPEG, PNG or WebP file
            name: what to call it in an error
            key: whose turn it takes
            wanted: what to make of it

        Raises:
            ServiceError: the process was killed.
        """
        job = _Job(data, name, wanted, asyncio.get_running_loop().create_future())
        self._jobs.push(key, job)
        self._waiting.release()
        return await job.future

    async def _work(self, decoder: Decoder | None) -> None:
        """Give jobs to one decoder after the other."""
        try:
            while True:
                await self._waiting.acquire()
                job = self._jobs.pop()
                if not job.future.done():  # else nobody waits for it any more
                    decoder = await self._served(job, decoder)
        finally:
            if decoder is not None:
                decoder.writer.close()

    async def _served(self, job: _Job, decoder: Decoder | None) -> Decoder | None:
        """Let a decoder do a job; return the decoder for the next one."""
        result: Decoded | ServiceError
        try:
            if decoder is None or decoder.reader.at_eof():  # it was killed meanwhile
                decoder = await self._another(decoder)
            began = time.monotonic()
            result = await self._decoded(decoder, job)
            self.pace += (time.monotonic() - began - self.pace) * (MEMORY if self.pace else 1)
        except ServiceError as error:
            result = error
        except asyncio.CancelledError:
            settle(job.future, ServiceError("the service is stopping"))
            raise
        except Exception:  # it has ended, or its answer makes no sense, in whatever way
            status = await self._nursery.end(decoder) if decoder is not None else 0
            result, decoder = _fate(status, job.name, self.bounds), None
        settle(job.future, result)
        if decoder is None:
            with suppress(ServiceError):  # the next job tries again
                decoder = await self._another(None)
        return decoder

    async def _another(self, decoder: Decoder | None) -> Decoder:
        """Start a decoder in place of one that has ended."""
        self.restarts += 1
        if decoder is not None:
            await self._nursery.end(decoder)
        return await self._nursery.begin()

    async def _decoded(self, decoder: Decoder, job: _Job) -> Decoded:
        """Send an image to a decoder, and read its answer, which is checked: it may be hostile."""
        async with asyncio.timeout(2 * self.bounds.seconds + GRACE):
            asked = {"name": job.name, "config": job.wanted.text, "side": job.wanted.side}
            decoder.writer.write(header(asked, len(job.data)))
            decoder.writer.write(job.data)
            await decoder.writer.drain()
            head, size = SIZES.unpack(await decoder.reader.readexactly(SIZES.size))
            if head > LONGEST or size > job.wanted.most:
                raise ValueError("too long an answer")
            answer = json.loads(await decoder.reader.readexactly(head))
            pixels = await decoder.reader.readexactly(size)
        if answer["error"]:
            return Decoded(NONE, error=one_line(str(answer["error"])[:ERROR]))
        shape = tuple(map(int, answer["shape"]))
        left, top, right, bottom = map(float, answer["box"])
        box = (left, top, right, bottom)
        if job.wanted.shape not in (None, shape) or not all(0 <= edge <= 1 for edge in box):
            raise ValueError("another shape, or a box outside of the image")
        rows, columns = map(int, answer["size"])
        array = np.frombuffer(bytearray(pixels), np.uint8).reshape(shape)
        return Decoded(array, box, size=(rows, columns))


def settle(future: asyncio.Future[Result], result: Result | ServiceError) -> None:
    """Give a future its result, if anyone still waits for it."""
    if future.done():
        return
    if isinstance(result, ServiceError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _fate(status: int, name: str, bounds: Bounds) -> Decoded | ServiceError:
    """Return what became of an image whose decoder ended with a status."""
    if status == -signal.SIGPROF:
        return Decoded(NONE, error=f"{name}: takes over {bounds.seconds:g} seconds to decode")
    if status in FAULTS:
        return Decoded(NONE, error=f"{name}: damaged or unsupported image")
    return ServiceError("the process that decoded the image was killed: send the request again")
