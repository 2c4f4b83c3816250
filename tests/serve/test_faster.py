"""A service begins with the plain engine, and a faster form takes over between two requests."""

import asyncio
import gc
import json
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitlab
from serve.made import Gate, Running, encoded, nudged, tiny, until
from steady import PATIENCE
from vitlab.serve.engine import Engine
from vitlab.serve.faster import Faster
from vitlab.serve.logs import Lines
from vitlab.serve.trunk import choose_form

IMAGE = encoded(0)
# enough multiply-adds for a fast form to be worth it, in one block, which is traced soon
LARGE = "ViT(width=704,depth=1,heads=11,mlp=2816)/16"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of this machine."""
    monkeypatch.setenv("VITLAB_CACHE", str(tmp_path / "cache"))


def large(seed: int = 0) -> Any:
    return tiny(LARGE, seed=seed, size=224)


@pytest.fixture
def running() -> Iterator[Running]:
    each = Running(("m", large()), timeout=PATIENCE, max_batch=4)
    yield each
    each.close()


def packed(running: Running) -> Any:
    """The packed form of the model, as it is chosen on other machines."""
    return choose_form(running.engine.find("m").trunk, "fp32", "packed")


def how(running: Running, name: str = "m") -> tuple[str, str]:
    card = running.engine.find(name).card
    return card.engine, card.precision


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(Lines().format(each)) for each in caplog.records]


def test_a_request_is_answered_by_the_form_that_it_began_with(running: Running) -> None:
    """The form changes while one request is in the model and another one in line behind it."""
    old, form = running.engine.find("m"), packed(running)
    gate, fast = Gate(old.trunk.base), Gate(form.network)

    async def change() -> list[Any]:
        gate.close()
        tasks = [asyncio.create_task(running.engine.answer([IMAGE], "m"))]
        await until(gate.reached.is_set)
        tasks += [asyncio.create_task(running.engine.answer([IMAGE], "m")) for _ in range(2)]
        await until(lambda: len(running.engine._batcher._waiting) == 2)
        assert await asyncio.to_thread(running.engine.change_form, old, form)
        fast.sizes.clear()
        tasks.append(asyncio.create_task(running.engine.answer([IMAGE], "m")))
        await until(lambda: len(running.engine._batcher._waiting) == 3)
        gate.open.set()
        return [await each for each in tasks]

    seen = running(change())
    assert (gate.sizes, fast.sizes) == ([1, 2], [1])  # forms share no batch
    new = running.engine.find("m")
    assert (old.card.engine, new.card.engine) == ("plain", "packed")
    assert new.card.model_copy(update={"engine": "plain"}) == old.card
    for (each,) in seen[1:]:
        np.testing.assert_allclose(each.probabilities, seen[0][0].probabilities, atol=1e-5)


def test_deltas_stay_with_the_plain_form_of_their_base(running: Running) -> None:
    base = large()
    changed = nudged(base, 3, "classify")
    running.engine.add("task", vitlab.delta(changed, base))
    assert running.engine.change_form(running.engine.find("m"), packed(running))
    running.engine.add("later", vitlab.delta(changed, base))
    trunks = {running.engine.find(name).trunk for name in ("m", "task", "later")}
    assert len(trunks) == 1
    assert [how(running, name)[0] for name in ("m", "task", "later")] == [
        "packed",
        "plain",
        "plain",
    ]
    for name, model in {"m": base, "task": changed, "later": changed}.items():
        (answer,) = vitlab.classify(model, IMAGE, top=5)
        want = [dict(answer.classes)[str(n)] for n in range(5)]
        np.testing.assert_allclose(
            running.answer(IMAGE, model=name)[0].probabilities, want, atol=1e-4
        )


@pytest.mark.parametrize("gone", ["removed", "replaced"])
def test_a_model_that_has_left_gets_no_form(running: Running, gone: str) -> None:
    served, form = running.engine.find("m"), packed(running)
    if gone == "removed":
        running.engine.remove("m")
    else:
        running.engine.add("m", tiny(), replace=True)
    assert not running.engine.change_form(served, form)
    assert [how(running, name) for name in running.engine.models] == (
        [("plain", "fp32")] if gone == "replaced" else []
    )


def test_memory_and_threads_go_back(running: Running) -> None:
    threads = threading.active_count()
    assert running.engine.change_form(running.engine.find("m"), packed(running))
    fast = weakref.ref(running.engine.find("m").form.network)
    base = weakref.ref(running.engine.find("m").trunk.base)
    running.answer(IMAGE, model="m")
    assert fast() is not None
    running.engine.add("m", tiny(), replace=True)
    running.answer(IMAGE, model="m")
    gc.collect()
    assert fast() is base() is None
    assert threading.active_count() <= threads


def test_a_failure_while_engines_are_timed_leaves_the_plain_form(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitlab.serve")
    served, failing = running.engine.find("m"), [True]

    def fail(*_: Any) -> None:
        if failing:
            raise MemoryError("no memory for another form")

    served.trunk.base.head.register_forward_pre_hook(fail)
    (faster := Faster(running.engine)).improve(served)
    failing.clear()
    assert running.engine.find("m") is served
    (said,) = [each for each in events(caplog) if each["event"] == "engines not timed"]
    assert (said["model"], said["level"]) == ("m", "warning")
    assert said["reason"]
    assert running.answer(IMAGE, model="m")[0].probabilities is not None
    running(faster.stop())


def test_what_is_asked_for_is_there_before_the_first_answer() -> None:
    engine = Engine(device="cpu", engine="packed", precision="fp32")
    engine.add("m", large())
    assert (engine.find("m").card.engine, engine.find("m").untimed) == ("packed", False)
    engine = Engine(device="cpu", engine="plain")
    engine.add("m", large())
    assert (engine.find("m").card.engine, engine.find("m").untimed) == ("plain", False)


@pytest.mark.parametrize("late", [False, True])
def test_timed_passes_give_way_to_requests_but_not_for_ever(running: Running, late: bool) -> None:
    gate = Gate(running.engine.find("m").trunk.base)

    async def batches_before_the_pass() -> int:
        gate.close()
        tasks = [asyncio.create_task(running.engine.answer([IMAGE], "m"))]
        await until(gate.reached.is_set)
        tasks.append(asyncio.create_task(running.engine.answer([IMAGE], "m")))
        await until(lambda: len(running.engine._batcher._waiting) == 1)
        due = time.monotonic() + (-1 if late else 600)
        count = partial(len, gate.sizes)
        alone = asyncio.create_task(asyncio.to_thread(running.engine.alone, count, due))
        await until(lambda: running.engine._batcher._aside)
        gate.open.set()
        await asyncio.gather(*tasks)
        return await alone

    assert running(batches_before_the_pass()) == (1 if late else 2)


def test_nothing_is_timed_once_the_service_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vitlab.serve")
    running = Running(("m", large()), timeout=PATIENCE)
    served, faster = running.engine.find("m"), Faster(running.engine)
    running.close()
    faster.improve(served)
    own = [each.getMessage() for each in caplog.records if each.name == "vitlab.serve"]
    assert own == ["timing engines"]


@pytest.mark.slow
def test_it_begins_with_the_plain_engine_and_the_choice_is_kept(
    running: Running, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Timed while it runs: card, precision and network change together."""
    caplog.set_level("INFO", "vitlab.serve")
    assert how(running) == ("plain", "fp32")
    (before,) = running.answer(IMAGE, model="m")
    served = running.engine.find("m")
    assert served.untimed

    async def watch() -> None:
        watching = asyncio.create_task(Faster(running.engine).watch())
        await until(lambda: [each for each in events(caplog) if each["event"] == "engine chosen"])
        watching.cancel()

    running(watch())
    said = [each for each in events(caplog) if each["event"] in ("timing engines", "engine chosen")]
    assert [each["model"] for each in said] == ["m", "m"]
    chosen = said[-1]["engine"], said[-1]["precision"]
    assert how(running) == chosen
    assert (running.engine.find("m") is served) is (chosen[0] == "plain")
    (after,) = running.answer(IMAGE, model="m")
    np.testing.assert_allclose(after.probabilities, before.probabilities, atol=0.02)
    assert list((tmp_path / "cache").rglob("*.json"))
    running.engine.add("again", large(1))  # of the same shape: what is known is used at once
    assert how(running, "again") == chosen
    assert not running.engine.find("again").untimed
