"""The engine under load: bounded, fair, and no request is lost or computed for nobody."""

import asyncio
import gc
import os
import signal
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
from vitlab.weights.deltas import Delta
from vitlab.weights.identity import Base

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
        engine._registry.models["slow"].trunk.pace = 0.0
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
    running.engine.add("bias", Delta(base.config, change, Base.of(base), {}))
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
        engine._registry.models["slow"].trunk.pace = 1.0
        engine._registry.models["tiny"].trunk.pace = 1.0
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
