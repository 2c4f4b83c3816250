"""Decoder processes: what an image may take there, and what ends them."""

import asyncio
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import active_children
from multiprocessing.process import BaseProcess

import numpy as np
import pytest
from PIL import Image

from serve.made import encoded, tiny
from steady import PATIENCE
from vitlab.data.images import Images
from vitlab.data.loading.crops import fitted_image
from vitlab.data.sources.pictures import Pictures
from vitlab.errors import ServiceError
from vitlab.serve import decoders as pool
from vitlab.serve.decoder import Bounds
from vitlab.serve.decoders import METHOD, Decoded, Decoders, Wanted

CONFIG = tiny().config


def many_scans(side: int = 2496, scans: int = 42) -> bytes:
    """A JPEG of 30 kB whose decoding takes long: each scan is a pass over all of it."""
    file = io.BytesIO()
    Image.new("L", (side, side), 90).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * scans + data[-2:]


def large_canvas(columns: int = 4999, rows: int = 5000) -> bytes:
    """A WebP of 140 bytes whose decoder takes over 400 MB."""
    file, frames = io.BytesIO(), [Image.new("RGB", (16, 16), each) for each in ("red", "blue")]
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    data = file.getvalue()
    sides = b"".join((side - 1).to_bytes(3, "little") for side in (columns, rows))
    return data[:24] + sides + data[30:]


def test_how_a_process_ended_decides_what_its_image_is() -> None:
    bounds = Bounds(seconds=2)
    late = pool._fate(-signal.SIGPROF, "a.png", bounds)
    assert isinstance(late, Decoded)
    assert late.error == "a.png: takes over 2 seconds to decode"
    for number in (signal.SIGSEGV, signal.SIGABRT):  # a fault in a library
        broken = pool._fate(-number, "a.png", bounds)
        assert isinstance(broken, Decoded)
        assert broken.error == "a.png: damaged or unsupported image"
    for status in (-signal.SIGKILL, 0, 1):  # the image may be good
        assert isinstance(pool._fate(status, "a.png", bounds), ServiceError)


def test_nothing_stays_of_a_start_that_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stayed would be waited for without end, as it ignores SIGTERM."""
    real, kept = pool.Connection.recv_bytes, list[object]()

    async def run() -> list[BaseProcess]:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def received(pipe: pool.Connection, *most: int) -> bytes:
            found = real(pipe, *most)
            loop.call_soon_threadsafe(started.set)
            kept.append(pipe)  # as the frames of a traceback do
            ended.wait(PATIENCE)
            return found

        monkeypatch.setattr(pool.Connection, "recv_bytes", received)
        starting = asyncio.create_task(Decoders(1, Bounds()).start())
        await started.wait()
        starting.cancel()
        await asyncio.wait({starting})
        ended.set()
        there = active_children()
        for each in there:
            await asyncio.to_thread(each.join, PATIENCE)
        return [each for each in there if each.is_alive()]

    ended = threading.Event()
    left = asyncio.run(run())
    for each in left:
        each.kill()
    assert left == []


def test_nothing_stays_of_a_process_that_is_stopped_as_it_starts() -> None:
    """It hears neither that the connection ends, nor a signal, and would be waited for."""

    async def run() -> list[BaseProcess]:
        before = {*active_children()}
        starting = asyncio.create_task(Decoders(1, Bounds()).start())
        while not (there := [each for each in active_children() if each not in before]):
            await asyncio.sleep(0.001)
        os.kill(there[0].pid or 0, signal.SIGSTOP)
        starting.cancel()
        await asyncio.wait({starting})
        for each in there:
            await asyncio.to_thread(each.join, PATIENCE)
        return [each for each in there if each.is_alive()]

    left = asyncio.run(run())
    for each in left:
        each.kill()
    assert left == []


@pytest.mark.parametrize("method", [METHOD, pytest.param("spawn", marks=pytest.mark.campaign)])
def test_time_and_memory_of_an_image_are_bounded(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """And the image after it finds everything as if nothing had happened; on macOS they spawn."""
    monkeypatch.setattr(pool, "METHOD", method)
    source = Images.of(Pictures([encoded(1), encoded(2)]))

    async def refused(bounds: Bounds, images: Iterator[bytes], restarts: int) -> str:
        """Return the error of the first image that has one; the images around it are decoded."""
        decoders = Decoders(1, bounds)
        await decoders.start()

        async def found(data: bytes) -> Decoded:
            return await decoders.decode(data, "it", "key", Wanted.by(CONFIG))

        try:
            first = await found(encoded(1))
            error = ""
            while not error:
                error = (await found(next(images))).error
            last = await found(encoded(2))
        finally:
            await decoders.stop()
        assert decoders.restarts == restarts
        for number, each in enumerate((first, last)):
            assert each.error == ""
            assert np.array_equal(each.pixels, fitted_image(source.image(number), CONFIG))
        return error

    longer = (many_scans(scans=42 * 2**n) for n in range(20))  # as fast as the processor may be
    error = asyncio.run(refused(Bounds(seconds=0.1), longer, 1))
    assert error == "it: takes over 0.1 seconds to decode"
    if sys.platform == "linux":  # the only system that bounds memory
        bounds = Bounds(seconds=60, memory=2**28)
        error = asyncio.run(refused(bounds, iter([large_canvas()]), 0))
        assert error.startswith("it: damaged or unsupported image (MemoryError")
