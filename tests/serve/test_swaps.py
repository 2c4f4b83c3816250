"""Models are replaced and removed between a request and its reply, which comes from one of them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import vitlab
from serve.calling import Reply, form, send
from serve.fakes import FakeEngine
from serve.made import Gate, Running, encoded, nudged, tiny, until
from steady import PATIENCE
from vitlab.errors import OptionError
from vitlab.evaluation.unlike import fit_unlike
from vitlab.serve.app import application

IMAGE, TOKEN = encoded(0), "a-token-of-more-than-16"
ACCESS = [("authorization", f"Bearer {TOKEN}")]
BODIES = {"bytes": (IMAGE, "image/png"), "form": form(("image 0", IMAGE), ("b", encoded(1)))}


def labeled(letter: str, seed: int, classes: int = 5, **choices: Any) -> Any:
    """A model whose classes have names of their own."""
    return tiny(seed=seed, classes=classes, labels=tuple(f"{letter}{n}" for n in range(classes)),
                **choices)  # fmt: skip


def several(letter: str, seed: int) -> Any:
    """A model for several classes per image, with thresholds of its own."""
    model = labeled(letter, seed)
    model.provenance |= {"multi_label": True, "thresholds": [0.1 * seed] * 5}
    return model


def far(letter: str, seed: int) -> Any:
    """A model that knows how far an image is from its training images."""
    rng, model = np.random.default_rng(seed), labeled(letter, seed)
    x, y, folds = rng.normal(size=(60, 16)), np.arange(60) % 5, np.arange(60) // 5 % 3
    model.unlike = fit_unlike((seed * x).astype(np.float32), y, folds, 1)
    return model


def pair(kind: str) -> tuple[Any, Any]:
    """The model that a request finds, and the one that takes its place."""
    base = labeled("z", 9)
    return {
        "models": (labeled("a", 1), labeled("b", 2)),
        "sizes": (labeled("a", 1), labeled("b", 2, classes=3, size=24)),
        "several": (several("a", 1), several("b", 4)),
        "distances": (far("a", 1), far("b", 3)),
        "no classes": (labeled("a", 1), tiny(seed=2, classes=0)),
        "no model": (labeled("a", 1), None),
        "deltas": tuple(
            vitlab.delta(nudged(base, seed, "attention", "classify"), base) for seed in (1, 2)
        ),
    }[kind]


class Swapping:
    """An application with a real engine behind it."""

    def __init__(self) -> None:
        self.running = Running(("z", labeled("z", 9)), timeout=PATIENCE)
        self.engine = self.running.engine
        self.app = application(self.engine, token=TOKEN)

    def ask(
        self, path: str, kind: str, swap: Callable[[], None] = lambda: None, when: str = ""
    ) -> Reply:
        """Send a request, and swap models as its last bytes come, or right after that."""
        data, type_ = BODIES[kind]
        headers = [*ACCESS, ("content-type", type_)]

        async def send_it() -> Reply:
            later = partial(asyncio.get_running_loop().call_soon, swap)
            last = swap if when == "before the last bytes" else later
            return await send(self.app, "POST", path, [data[:9], data[9:]], headers, last=last)

        return self.running(send_it())


@pytest.fixture(scope="module")
def swapping() -> Iterator[Swapping]:
    each = Swapping()
    yield each
    each.running.close()


WHEN = ("before the last bytes", "after the last bytes")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("path", ["/predict", "/features"])
@pytest.mark.parametrize(
    "kind", ["models", "sizes", "several", "distances", "no classes", "no model", "deltas"]
)
def test_a_reply_comes_from_the_model_that_the_request_found(
    swapping: Swapping, kind: str, path: str, when: str
) -> None:
    """Labels, probabilities, thresholds, distances, sizes: all of one model, that of the door."""
    engine, (old, new) = swapping.engine, pair(kind)
    engine.add("m", old)
    body = "form" if kind == "models" else "bytes"
    address = f"{path}?model=m" + "&top=2" * (path != "/features")

    def swap() -> None:
        if new is None:
            engine.remove("m")
        else:
            engine.add("m", new, replace=True)

    try:
        wanted = swapping.ask(address, body)
        reply = swapping.ask(address, body, swap, when)
        after = swapping.ask(address, body)
    finally:
        if new is not None:
            engine.remove("m")
    assert (wanted.status, reply.status) == (200, 200), reply.body
    key = "features" if path == "/features" else "predictions"
    assert rounded(reply.json[key]) == rounded(wanted.json[key])
    if (kind, path) == ("distances", "/predict"):
        assert all(each["distance"] for each in wanted.json[key])
    if new is None:
        assert after.status == 404
    elif after.status == 200:
        assert rounded(after.json[key]) != rounded(wanted.json[key])


def rounded(value: Any) -> Any:
    """The same with numbers of five digits: a batch may sum in another order."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 5) if isinstance(value, float) else value


def test_the_last_model_leaves_while_a_body_arrives() -> None:
    """The service has none any more, and answers what it has accepted."""
    swapping = Swapping()
    swapping.engine.allow_empty = False
    reply = swapping.ask("/predict", "bytes", lambda: swapping.engine.remove("z"), WHEN[0])
    assert (reply.status, reply.json["model"]) == (200, "z")
    assert swapping.ask("/predict", "bytes").status == 503
    swapping.running.close()


def test_a_model_that_another_request_removed_is_unknown() -> None:
    """Between the look at the door and the removal: 404, as before it."""

    class Removed(FakeEngine):
        def remove(self, name: str) -> None:
            raise OptionError(f"unknown model {name!r}")

    app = application(Removed(), token=TOKEN)  # type: ignore[arg-type]
    reply = asyncio.run(send(app, "DELETE", "/models/first", [], ACCESS))
    assert (reply.status, "unknown model" in reply.error) == (404, True)


def test_nobody_waits_while_a_model_is_loaded() -> None:
    """Requests, /health, and removals: of another model, and of the one that is being replaced."""
    running = Running(("z", labeled("z", 9)), ("slow", labeled("a", 1)), timeout=PATIENCE)
    engine, new = running.engine, labeled("b", 2)
    app, gate = application(engine, token=TOKEN), Gate(new)
    engine.add("other", labeled("o", 3))

    async def ask(method: str, path: str, body: bytes = b"") -> int:
        return (await send(app, method, path, [body] if body else [], ACCESS)).status

    async def all_of_it() -> list[int]:
        gate.close()
        adding = asyncio.create_task(asyncio.to_thread(engine.put, "slow", new))
        await until(gate.reached.is_set)  # it computes for the first time
        found = [
            await ask("GET", "/health"), await ask("GET", "/ready"), await ask("GET", "/models"),
            await ask("DELETE", "/models/other"), await ask("DELETE", "/models/slow"),
            await ask("DELETE", "/models/slow"), await ask("POST", "/predict", IMAGE),
        ]  # fmt: skip
        assert not adding.done()
        assert [card.name for card in engine.cards()] == ["z"]
        gate.open.set()
        assert await adding is False  # the one that it was to replace had left
        return found

    assert running(all_of_it()) == [200, 200, 200, 200, 200, 404, 200]
    assert [card.name for card in engine.cards()] == ["z", "slow"]
    running.close()


def test_decoders_have_threads_of_their_own() -> None:
    """Whatever fills the threads that all share, images are decoded."""
    running, gate = Running(("z", labeled("z", 9)), timeout=PATIENCE), threading.Event()

    async def crowd() -> Any:
        waiting = [asyncio.create_task(asyncio.to_thread(gate.wait, PATIENCE)) for _ in range(64)]
        await asyncio.sleep(0)
        seen = await running.engine.answer([IMAGE], "z")
        gate.set()
        await asyncio.gather(*waiting)
        return seen

    assert running(crowd())[0].probabilities is not None
    running.close()
