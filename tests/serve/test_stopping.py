"""The end of an engine: what waits is refused, and nothing stays behind."""

import asyncio
import math
import os
import threading

import numpy as np
import pytest
import torch

from serve.made import Gate, Running, encoded, figure, processes_below, tiny, until
from vitlab.errors import ServiceError
from vitlab.serve.answers import Question, Seen
from vitlab.serve.batcher import Batcher
from vitlab.serve.decoders import Decoded
from vitlab.serve.metrics import Metrics
from vitlab.serve.registry import Registry

IMAGE = encoded(0)


def test_nothing_stays_behind_and_what_waits_is_refused() -> None:
    before, model = threading.enumerate(), tiny()
    gate, running = Gate(model), Running(("tiny", model), max_batch=2, timeout=60)
    engine = running.engine
    assert engine.ready
    running_now = processes_below(os.getpid())

    async def end() -> None:
        gate.close()
        tasks = [asyncio.ensure_future(engine.answer([IMAGE])) for _ in range(5)]
        await until(lambda: figure(engine, "decoded_images") == 5)
        stopping = asyncio.ensure_future(engine.stop())
        await until(lambda: not engine.ready)
        with pytest.raises(ServiceError, match="not ready: it is starting or stopping"):
            await engine.answer([IMAGE])
        gate.open.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[0], list)  # it was being computed
        assert all(isinstance(each, ServiceError) for each in found[1:])
        await stopping

    running(end())
    running.loop.close()
    assert gate.sizes == [1]
    assert processes_below(os.getpid()) == running_now[:-1]  # but for multiprocessing's own
    left = {thread.name for thread in threading.enumerate() if thread not in before}
    assert "vitlab-compute" not in left


def test_what_cannot_be_answered_in_time_is_refused() -> None:
    """A batch that hangs, what waits behind it, and what comes too late."""
    model = tiny()
    registry, gate = Registry(torch.device("cpu"), lambda served: None), Gate(model)
    registry.add("tiny", model)
    served = registry.find("tiny")
    served.batch = 2
    image = Decoded(np.zeros((16, 16, 3), np.uint8))

    async def stop() -> None:
        loop, batcher = asyncio.get_running_loop(), Batcher(60.0, Metrics())
        futures: list[asyncio.Future[Seen]] = [loop.create_future() for _ in range(4)]
        batcher.start()
        gate.close()
        for future in futures[:3]:
            batcher.put(Question(served, "classes", image, math.inf, future))
            await until(gate.reached.is_set)
        await batcher.stop(0.05)
        batcher.put(Question(served, "classes", image, math.inf, futures[3]))
        for future in (futures[0], futures[3]):
            with pytest.raises(ServiceError, match="the service is stopping"):
                await future
        gate.open.set()  # the thread goes on, and finds that it should end
        for future in futures[1:3]:
            with pytest.raises(ServiceError, match="the service is stopping"):
                await future
        await batcher.stop()

    asyncio.run(stop())
