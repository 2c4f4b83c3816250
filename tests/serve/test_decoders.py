"""Decoder processes: what an image may take there, and what ends them."""

import asyncio
import io
import signal
import sys
import threading
from multiprocessing import active_children
from multiprocessing.process import BaseProcess

import numpy as np
import pytest
from PIL import Image

from serve.made import encoded, tiny
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.crops import fitted_image
from vitlab.data.sources.pictures import Pictures
from vitlab.errors import ServiceError
from vitlab.serve import decoders as pool
from vitlab.serve.decoder import Bounds
from vitlab.serve.decoders import METHOD, Decoded, Decoders, Wanted

CONFIG = tiny().config


def many_scans(side: int = 2496, scans: int = 42) -> bytes:
    """A JPEG of 30 kB whose decoding takes seconds: each scan is a pass over all of it."""
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
            ended.wait(20)
            return found

        monkeypatch.setattr(pool.Connection, "recv_bytes", received)
        starting = asyncio.create_task(Decoders(1, Bounds()).start())
        await started.wait()
        starting.cancel()
        await asyncio.wait({starting})
        ended.set()
        there = active_children()
        for each in there:
            await asyncio.to_thread(each.join, 10)
        return [each for each in there if each.is_alive()]

    ended = threading.Event()
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

    async def run() -> list[Decoded]:
        decoders = Decoders(1, Bounds(seconds=0.5, memory=2**28))
        await decoders.start()
        try:
            images = [encoded(1), many_scans(), encoded(2), large_canvas(), encoded(3)]
            wanted = Wanted.by(CONFIG)
            found = [await decoders.decode(each, "it", "key", wanted) for each in images]
            assert decoders.restarts == 1
            return found
        finally:
            await decoders.stop()

    found = asyncio.run(run())
    assert found[1].error == "it: takes over 0.5 seconds to decode"
    if sys.platform == "linux":  # the only system that bounds memory
        assert found[3].error.startswith("it: damaged or unsupported image (MemoryError")
    source = Pictures([encoded(1), encoded(2), encoded(3)], SingleLabels.blank(3, 1), ("",))
    for number, each in enumerate(found[::2]):
        want = fitted_image(source.image(number), CONFIG)
        assert np.array_equal(each.pixels, want)
        assert each.error == ""
