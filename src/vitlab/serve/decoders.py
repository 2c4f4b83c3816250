"""A pool of decoder processes, each with one image at a time, and the queue in front of them.

The processes are multiprocessing's: forked from its fork server, which has imported everything, so
that one is replaced in milliseconds; on macOS, where a process that has loaded PyTorch must not
fork, each is a program of its own and takes seconds.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

import numpy as np

from vitlab.data.decode.pixels import Box, Pixels
from vitlab.data.loading.crops import resized_sides
from vitlab.errors import ServiceError, one_line
from vitlab.models.config import ModelConfig
from vitlab.serve.decoder import WHOLE, Bounds, serve_connection
from vitlab.weights.identity import description

START = 120.0  # seconds: PyTorch is imported
LEAVE = 5.0
METHOD = "spawn" if sys.platform == "darwin" else "forkserver"
SAFE = "PYTHONSAFEPATH"  # imports nothing from the current folder
LONGEST = 2**14  # bytes of an answer without its pixels
ERROR = 500  # characters
GRACE = 5.0  # seconds for the messages of an image
MEMORY = 0.1  # share of the newest image in the average seconds
NONE: Pixels = np.empty((0, 0, 0), np.uint8)
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Decoded:
    """One image: pixels (rows, columns, channels) and where they lie in it; or why there are none.

    Attributes:
        pixels: uint8 (rows, columns, channels)
        box: left, top, right, bottom, as fractions of the upright image
        error: one line; empty for pixels
        size: rows and columns of the upright image
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
        pixels: of the image itself, at most
        scale: of a whole image, for windows of that shape, as `resized_sides` has it; 0 for a crop
        side: of a preview, most rows and columns; 0 for a model's image
    """

    text: str
    shape: tuple[int, int, int] | None
    most: int
    side: int = 0
    pixels: int = 2**32
    scale: float = 0.0

    @classmethod
    def by(cls, config: ModelConfig) -> "Wanted":
        """Return what a model wants."""
        text = json.dumps(description(replace(config, labels=())))
        shape = None if config.fit == "native" else (*config.size, config.channels)
        return cls(text, shape, config.area * config.channels)

    def asked(self, name: str) -> dict[str, Any]:
        """Return the request to a decoder for an image of this name."""
        return asdict(self) | {"name": name}

    def shape_of(self, size: tuple[int, int]) -> tuple[int, int, int] | None:
        """Return the shape that an image of a size is decoded to; None for any."""
        if self.shape is None or not self.scale:
            return self.shape
        return *resized_sides(size, self.shape[:2], self.scale), self.shape[2]

    @classmethod
    def preview(cls, side: int) -> "Wanted":
        """Return what a person wants: the whole image in RGB, this long at most."""
        return cls("", None, 3 * side * side, side)


class Rounds(Generic[Key, Item]):
    """Items that wait, by whom they are for: these take turns; items of one keep their order."""

    def __init__(self) -> None:
        self._waiting: dict[Key, deque[Item]] = {}  # in the order of their turns; none empty

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Key]:
        """Iterate over those for whom items wait, whose turn is next first."""
        return iter(self._waiting)

    def push(self, key: Key, item: Item) -> None:
        """Add an item at the end of its line."""
        self._waiting.setdefault(key, deque()).append(item)

    def pop(self, key: Key | None = None) -> Item:
        """Take the first item of whose turn it is, or of a given one, whose turn is then over."""
        key = next(iter(self)) if key is None else key
        line = self._waiting.pop(key)
        item = line.popleft()
        if line:
            self._waiting[key] = line  # at the end
        return item


@dataclass(frozen=True)
class _Process:
    """A decoder process and the connection to it."""

    process: BaseProcess
    pipe: Connection

    async def end(self) -> int:
        """End the process; return its exit status, or the negative signal that ended it before."""
        self.process.kill()
        await asyncio.to_thread(self.process.join, LEAVE)
        self.pipe.close()
        return self.process.exitcode or 0


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
        self.decoded, self.restarts = 0, -count
        self._jobs: Rounds[Hashable, _Job] = Rounds()
        self._waiting = asyncio.Semaphore(0)
        self._starting = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        # of their own: whatever else waits in a thread, images are decoded
        self._threads = ThreadPoolExecutor(count, "vitlab-decode")

    async def start(self) -> None:
        """Start the processes.

        Raises:
            ServiceError: they cannot be started.
        """
        await self._in_thread(self.begin_imports)
        first = await asyncio.gather(*(self._begin() for _ in range(self.count)))
        self._tasks = [asyncio.create_task(self._work(each)) for each in first]

    def begin_imports(self) -> None:
        """Let the fork server, where there is one, import what decoders need; wait for nothing."""
        multiprocessing.set_forkserver_preload(["__main__", serve_connection.__module__])
        if METHOD == "forkserver":
            _safely(forkserver.ensure_running)

    async def stop(self) -> None:
        """End the processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)
        while len(self._jobs):
            settle(self._jobs.pop().future, stopping())

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

    async def _begin(self) -> _Process:
        """Start a process and connect to it."""
        self.restarts += 1
        context = multiprocessing.get_context(METHOD)
        ours, theirs = context.Pipe()
        process = context.Process(  # type: ignore[attr-defined]
            target=serve_connection, args=(theirs, self.bounds), daemon=True
        )
        try:
            async with asyncio.timeout(START), self._starting:
                with theirs:
                    await self._in_thread(partial(_safely, process.start))
                await self._in_thread(ours.recv_bytes)
        except BaseException as error:  # or it was cancelled
            if process.pid is not None:  # it may be stopped, and would be waited for at the end
                process.kill()
            ours.close()  # by which the process ends, if it is only starting
            if isinstance(error, OSError | EOFError):
                raise ServiceError(f"no process can decode images: {error}") from None
            raise
        return _Process(process, ours)

    async def _work(self, decoder: _Process | None) -> None:
        """Give jobs to one process after the other."""
        job: _Job | None = None
        try:
            while True:
                await self._waiting.acquire()
                job = self._jobs.pop()
                if job.future.done():  # nobody waits for it any more
                    continue
                try:
                    if decoder is None or not decoder.process.is_alive():  # it was killed meanwhile
                        if decoder is not None:
                            await decoder.end()
                        decoder = await self._begin()
                    settle(job.future, await self._timed(decoder, job))
                except ServiceError as error:  # the next job tries again
                    settle(job.future, error)
                except Exception:  # it has ended, or its answer makes no sense, in whatever way
                    status = await decoder.end() if decoder is not None else 0
                    settle(job.future, _fate(status, job.name, self.bounds))
                    decoder = None
                    with suppress(ServiceError):
                        decoder = await self._begin()
        finally:
            if job is not None:
                settle(job.future, stopping())
            if decoder is not None:
                await decoder.end()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Wait for something, in one thread for each process."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _timed(self, decoder: _Process, job: _Job) -> Decoded:
        """Let a process decode an image, and take the time into the pace."""
        async with asyncio.timeout(2 * self.bounds.seconds + GRACE):
            most = self.bounds.max_pixels
            found, seconds = await self._in_thread(partial(_decoded, decoder.pipe, job, most))
        self.decoded += not found.error
        self.pace += (seconds - self.pace) * (MEMORY if self.pace else 1)
        return found


def _decoded(pipe: Connection, job: _Job, most: int) -> tuple[Decoded, float]:
    """Send an image and read the answer, which is checked: it may be hostile; and the seconds.

    They are taken here: a busy event loop would add its own, and refuse what can be decoded.
    """
    began = time.monotonic()
    wanted = job.wanted
    pipe.send_bytes(json.dumps(wanted.asked(job.name)).encode())
    pipe.send_bytes(job.data)
    answer = json.loads(pipe.recv_bytes(LONGEST))
    pixels = pipe.recv_bytes(wanted.most)
    seconds = time.monotonic() - began
    if answer["error"]:
        return Decoded(NONE, error=one_line(str(answer["error"])[:ERROR])), seconds
    shape = tuple(map(int, answer["shape"]))
    left, top, right, bottom = map(float, answer["box"])
    box = (left, top, right, bottom)
    rows, columns = map(int, answer["size"])
    if min(rows, columns) < 1 or rows * columns > most:
        raise ValueError("a size that no image has")
    if wanted.shape_of((rows, columns)) not in (None, shape) or not all(0 <= e <= 1 for e in box):
        raise ValueError("another shape, or a box outside of the image")
    array = np.frombuffer(bytearray(pixels), np.uint8).reshape(shape)
    return Decoded(array, box, size=(rows, columns)), seconds


def _safely(start: Callable[[], None]) -> None:
    """Start a process, or first the fork server, with nothing from the current folder."""
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        start()
    finally:
        os.environ.pop(SAFE)
        os.environ |= {SAFE: before} if before else {}


def stopping() -> ServiceError:
    """Return the error of what is given up at the end."""
    return ServiceError("the service is stopping")


def settle(future: asyncio.Future[Result] | None, result: Result | ServiceError) -> None:
    """Give a future its result, if anyone still waits for it."""
    if future is None or future.done():
        return
    if isinstance(result, ServiceError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _fate(status: int, name: str, bounds: Bounds) -> Decoded | ServiceError:
    """Return what became of an image whose decoder ended with a status."""
    if status == -signal.SIGPROF:
        return Decoded(NONE, error=f"{name}: takes over {bounds.seconds:g} seconds to decode")
    if status < 0 and status != -signal.SIGKILL:  # the image has found a fault in a library
        return Decoded(NONE, error=f"{name}: damaged or unsupported image")
    return ServiceError("the process that decoded the image was killed: send the request again")
