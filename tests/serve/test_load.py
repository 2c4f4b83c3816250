"""The engine under load: bounded, fair, and no request is lost or computed for nobody."""

import asyncio
import gc
import math
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from serve.made import Gate, Running, encoded, figure, nudged, processes_below, tiny, until
from vitlab.errors import BusyError, LateError, OptionError, ServiceError
from vitlab.serve.answers import Question, Seen
from vitlab.serve.batcher import Batcher
from vitlab.serve.decoders import Decoded, Rounds
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits
from vitlab.serve.metrics import Metrics
from vitlab.serve.registry import Registry
from vitlab.weights.deltas import Delta
from vitlab.weights.identity import base_of

IMAGE = encoded(0)


@pytest.fixture
def gate(running: Running) -> Iterator[Gate]:
    """A model `slow` that computes while the gate is open."""
    model = tiny(seed=7)
    gate = Gate(model)
    running.engine.add("slow", model)
    yield gate
    gate.open.set()
    if "slow" in {card.name for card in running.engine.cards()}:
        running.engine.remove("slow")


def held(running: Running) -> int:
    return running.engine._held


def asked(running: Running, *images: bytes, model: str = "slow") -> "asyncio.Task[Any]":
    return asyncio.ensure_future(running.engine.answer(images or [IMAGE], model))


async def computing(running: Running, gate: Gate, others: int = 0) -> "asyncio.Task[Any]":
    """A request that is in the model, and so many in line behind it."""
    gate.close()
    first = asked(running)
    await until(gate.reached.is_set)
    return first


def test_beyond_the_queue_the_answer_is_busy_at_once(running: Running, gate: Gate) -> None:
    async def flood() -> None:
        gate.close()
        served = [asked(running) for _ in range(20)]
        await until(lambda: sum(task.done() for task in served) >= 12)
        refused = [task.exception() for task in served if task.done()]
        assert all(isinstance(error, BusyError) for error in refused)
        assert all(0 < error.retry_after <= 60 for error in refused)
        # the other model finds places still: one of two holds twice what is left, 8 of 12
        assert held(running) == len(served) - len(refused) == 8
        other = asked(running, IMAGE, IMAGE, model="tiny")
        await until(lambda: held(running) == 10)
        gate.open.set()
        good = [task for task in served if task not in [t for t in served if t.done()]]
        for seen in await asyncio.gather(other, *good):
            assert all(each.probabilities is not None for each in seen)

    running(flood())
    assert held(running) == 0
    assert figure(running.engine, "images_shed_total", model="slow") == 12


def test_late_and_cancelled_requests_are_not_computed(running: Running, gate: Gate) -> None:
    engine, usual = running.engine, running.engine.limits

    async def wait() -> None:
        first = await computing(running, gate)
        gone = asked(running)
        await until(lambda: held(running) == 2)
        engine.limits = replace(usual, timeout=0.05)
        engine._decoders.pace = 0.0  # nothing is known that would refuse it at once
        engine.models["slow"].form.pace = 0.0
        with pytest.raises(LateError, match=r"no answer within 0\.05 seconds"):
            await engine.answer([IMAGE], "slow")
        gone.cancel()
        await until(lambda: held(running) == 1)
        engine.limits = usual
        gate.open.set()
        await first
        await engine.answer([IMAGE], "slow")

    try:
        running(wait())
    finally:
        engine.limits = usual
    assert gate.sizes == [1, 1]
    assert figure(engine, "images_late_total", model="slow") == 1


def test_what_waits_is_computed_together(running: Running, gate: Gate, tmp_path: Path) -> None:
    """Images of a base and of its deltas, that came while something else was computed."""
    base, engine = tiny(), running.engine
    tuned = {name: nudged(base, n, "attention") for n, name in enumerate("ab")}
    for name, model in tuned.items():
        engine.add(name, vitlab.delta(model, base))

    def sizes() -> list[float]:
        """Batches of one image, and of up to four."""
        bounds = ("1.0", "4.0")
        return [figure(engine, "batch_images_bucket", le=each) for each in bounds]

    before = sizes()

    async def mixed() -> list[Any]:
        first = await computing(running, gate)
        later = [asked(running, model=name) for name in ("a", "tiny", "b", "a")]
        await until(lambda: len(engine._batcher._waiting) == len(later))
        gate.open.set()
        return (await asyncio.gather(first, *later))[1:]

    seen = running(mixed())
    for (each,), model in zip(seen, (tuned["a"], base, tuned["b"], tuned["a"]), strict=True):
        (answer,) = vitlab.classify(model, IMAGE, top=5)
        want = [dict(answer.classes)[str(n)] for n in range(5)]
        np.testing.assert_allclose(each.probabilities, want, atol=1e-6)
    assert np.subtract(sizes(), before).tolist() == [1, 2]  # one of 1, one of up to 4
    for name in tuned:
        engine.remove(name)


@pytest.mark.parametrize("new", [None, tiny(seed=11)], ids=["removed", "replaced"])
def test_a_model_that_leaves_answers_what_it_was_asked(
    running: Running, gate: Gate, new: Any
) -> None:
    async def swap() -> list[Any]:
        first = await computing(running, gate)
        tasks = [first, asked(running)]
        await until(lambda: held(running) == 2)
        if new is None:
            running.engine.remove("slow")
            with pytest.raises(OptionError, match="unknown model 'slow'"):
                await asked(running)
        else:
            running.engine.add("slow", new, replace=True)
            tasks.append(asked(running))
        gate.open.set()
        return [seen for task in tasks for seen in await task]

    seen = [each.probabilities for each in running(swap())]
    wanted = [tiny(seed=7), tiny(seed=7), new][: len(seen)]
    for found, model in zip(seen, wanted, strict=True):
        (answer,) = vitlab.classify(model, IMAGE, top=5)
        want = [dict(answer.classes)[str(n)] for n in range(5)]
        np.testing.assert_allclose(found, want, atol=1e-6)


def test_a_model_that_left_is_freed(running: Running) -> None:
    base = tiny(seed=12)
    running.engine.add("base", base)
    running.engine.add("task", vitlab.delta(nudged(base, 1, "mlp"), base))
    running.answer(IMAGE, model="task")
    bias = np.ones(5, np.float32)
    change = {"head.classify.bias": torch.from_numpy(bias)}  # which holds the array
    running.engine.add("bias", Delta(base.config, change, base_of(base), {}))
    there, memory = weakref.ref(base), weakref.ref(bias)
    del base, bias, change
    running.engine.remove("base")
    running.answer(IMAGE, model="task")
    running.engine.remove("bias")
    running.answer(IMAGE, model="task")
    gc.collect()
    assert there() is not None
    assert memory() is None
    running.engine.add("task", tiny(), replace=True)
    running.answer(IMAGE, model="task")
    running.engine.remove("task")
    running.answer(IMAGE)
    gc.collect()
    assert there() is None


def test_a_decoder_that_is_killed(running: Running) -> None:
    """The request that it was busy with fails; the next one finds another decoder."""
    engine = running.engine

    async def kill(number: int) -> None:
        os.kill(number, signal.SIGSTOP)
        busy = asked(running, model="tiny")
        await until(lambda: held(running) == 1)
        await asyncio.sleep(0.05)  # it was sent
        os.kill(number, signal.SIGKILL)
        with pytest.raises(ServiceError, match="was killed: send the request again"):
            await busy
        assert (await engine.answer([IMAGE]))[0].probabilities is not None

    def decoder() -> int:
        """The last process: the others are multiprocessing's own."""
        return processes_below(os.getpid())[-1]

    before = figure(engine, "decoder_restarts")
    running(kill(decoder()))
    other = decoder()
    os.kill(other, signal.SIGKILL)  # while it has nothing to do: nobody notices
    running(until(lambda: not Path(f"/proc/{other}").exists()))
    assert running.answer(IMAGE)[0].probabilities is not None
    assert figure(engine, "decoder_restarts") == before + 2
    ignored = Path(f"/proc/{decoder()}/status").read_text().split("SigIgn:")[1].split()[0]
    assert int(ignored, 16) & 1 << (signal.SIGINT - 1)


def test_there_is_room_until_places_or_time_run_out(running: Running, gate: Gate) -> None:
    engine, usual = running.engine, running.engine.limits
    assert engine.crowded(0) == 0  # whatever the pace: a lone request is tried

    async def fill() -> None:
        first = await computing(running, gate)
        engine.models["slow"].form.pace = 1.0
        engine.models["tiny"].form.pace = 1.0
        engine.limits = replace(usual, timeout=10)
        assert engine.crowded(1) == 0
        assert engine.crowded(8) == pytest.approx(1.0)  # 9 seconds, and 8 are allowed
        engine.limits = replace(usual, timeout=1e6)
        assert engine.crowded(usual.queue - 1) == 0
        assert engine.crowded(usual.queue) > 0
        engine.limits = usual
        gate.open.set()
        await first

    running(fill())


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
        refused = [each for each in found if isinstance(each, ServiceError)]
        assert len(refused) in (3, 4)  # all but the batch, of one or two, that was being computed
        assert gate.sizes == [5 - len(refused)]
        assert all(isinstance(each, list) for each in found if each not in refused)
        await stopping

    running(end())
    # but for multiprocessing's own; while others end, the kernel's list may lack some
    running(until(lambda: processes_below(os.getpid()) == running_now[:-1]))
    running.loop.close()
    left = {thread.name for thread in threading.enumerate() if thread not in before}
    assert "vitlab-compute" not in left


def test_what_cannot_be_answered_in_time_is_refused() -> None:
    """A batch that hangs, what waits behind it, and what comes too late."""
    model = tiny()
    registry, gate = Registry(torch.device("cpu"), lambda served: 2), Gate(model)
    registry.add("tiny", model)
    served = registry.find("tiny")
    image = Decoded(np.zeros((16, 16, 3), np.uint8))

    async def stop() -> None:
        loop, batcher = asyncio.get_running_loop(), Batcher(60.0, Metrics())
        futures: list[asyncio.Future[Seen]] = [loop.create_future() for _ in range(4)]
        batcher.start()
        gate.close()
        for future in futures[:3]:
            batcher.put(Question(served, "classes", image, math.inf, future))
            await until(gate.reached.is_set)
        named = [each for each in threading.enumerate() if each.name == "vitlab-compute"]
        assert {each.daemon for each in named} == {True}  # else the process could not end
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


def test_each_in_turn_and_in_order() -> None:
    rounds: Rounds[str, int] = Rounds()
    for key, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        rounds.push(key, item)
    assert (len(rounds), list(rounds)) == (6, ["a", "b", "c"])
    assert [rounds.pop() for _ in range(4)] == [1, 4, 5, 2]
    assert rounds.pop("a") == 3
    assert rounds.pop() == 6
    assert len(rounds) == 0


class Places:
    """An engine whose places are taken without anything being computed."""

    def __init__(self, *names: str) -> None:
        self.engine = Engine(limits=Limits(queue=20, max_batch=1), device="cpu")
        self.engine._started = True
        for name in names:
            self.engine.add(name, tiny())

    def admitted(self, images: int, name: str) -> bool:
        try:
            self.engine.check(images, self.engine.find(name), "classes")
        except BusyError:
            return False
        return True

    def take(self, images: int, name: str) -> None:
        self.engine._hold(self.engine.find(name), images)


def test_no_model_takes_all_places() -> None:
    """Two crowds and one lone request: the places are never exceeded, and some are always left."""
    places = Places("a", "b", "c")
    held = dict.fromkeys("abc", 0)
    while came := [key for key in "ab" if places.admitted(1, key)]:
        places.take(1, came[0])
        held[came[0]] += 1
    assert held == {"a": 13, "b": 4, "c": 0}
    assert places.admitted(3, "c")
    assert not places.admitted(4, "c")
    assert figure(places.engine, "images_shed_total", model="c") == 4
    alone = Places("a")  # which may take all of them
    alone.take(4, "a")
    assert alone.admitted(16, "a")
    assert not alone.admitted(17, "a")


@pytest.mark.parametrize("held", [0, 1])
def test_a_lone_request_is_tried_whatever_the_pace_was(held: int) -> None:
    """A pace that one stalled batch has left behind would refuse everything for ever."""
    places = Places("a")
    places.engine.find("a").form.pace = 1000.0
    places.take(held, "a")
    assert places.admitted(1, "a") is (held == 0)
