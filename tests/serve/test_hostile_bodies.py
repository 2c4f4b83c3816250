"""A thousand hostile requests to a real model: never a 500, never a hang, never growth."""

import asyncio
import gc
import os
import re
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from serve.calling import Reply, send
from serve.hostile import FILES, Hostile, requests
from serve.made import figure, processes_below, tiny
from steady import PATIENCE
from vitlab.serve.app import application
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits

LIMITS = Limits(
    patience=PATIENCE, max_body=1.0, max_images=4, decoders=1, timeout=PATIENCE, max_batch=4
)
EXPECTED = {200, 400, 403, 404, 405, 408, 413, 414, 415, 422, 431}


def megabytes() -> float:
    """Memory of this process and of all below it."""
    gc.collect()
    total = 0
    for process in (os.getpid(), *processes_below(os.getpid())):
        with suppress(OSError):
            text = Path(f"/proc/{process}/status").read_text()
            total += sum(int(each) for each in re.findall(r"VmRSS:\s+(\d+)", text))
    return total / 1024


async def answer(app: Any, made: Hostile) -> Reply:
    async with asyncio.timeout(PATIENCE):
        return await send(app, "POST", made.path, [made.body], made.headers)


def problems(reply: Reply) -> list[str]:
    """What is wrong with an answer."""
    found = [] if reply.status in EXPECTED else [f"status {reply.status}: {reply.body[:200]!r}"]
    if reply.status >= 400 and not reply.error:
        found.append("no reason")
    private = rb"Traceback|\.py\b|/tmp|site-packages|root:|"
    if re.search(private + re.escape(tempfile.gettempdir()).encode(), reply.body):
        found.append(f"it tells too much: {reply.body[:200]!r}")
    return found


async def run(seed: int, count: int, workers: int = 4) -> tuple[list[str], Counter[int], float]:
    """Send hostile requests; return what is wrong, the statuses, and the growth in megabytes."""
    engine = Engine(limits=LIMITS, device="cpu")
    engine.add("tiny", tiny())
    app = application(engine)
    await engine.start()
    todo, bad, statuses, sizes = requests(seed, count), [], Counter[int](), [0.0]

    async def work() -> None:
        for made in todo:
            try:
                reply = await answer(app, made)
                found = problems(reply)
            except Exception as error:
                found, reply = [repr(error)], Reply(0, {}, b"")
            statuses[reply.status] += 1
            if found:
                bad.append(f"{made.how} {made.path[:40]} {made.headers}"[:300] + f": {found}")
            if statuses.total() in (count // 2, count):
                sizes.append(megabytes())

    await asyncio.gather(*(work() for _ in range(workers)))
    good = await answer(app, Hostile("good", "/predict", FILES["PNG"], []))
    assert good.status == 200, good.body
    assert app.state.serving.under_way == figure(engine, "body_bytes") == 0
    assert figure(engine, "decoder_restarts") == 0  # one that hangs is killed and replaced
    await engine.stop()
    return bad, statuses, sizes[-1] - sizes[1]


# Starlette leaves the file of a part without an end to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_hostile_requests() -> None:
    """VITLAB_REQUESTS sets their number, VITLAB_SEED the seed."""
    words = {"VITLAB_REQUESTS": "150", "VITLAB_SEED": "0"}
    count, seed = (int(os.environ.get(name, usual)) for name, usual in words.items())
    bad, statuses, growth = asyncio.run(run(seed, count))
    assert bad == []
    assert statuses.total() == count
    assert {200, 400, 413, 415, 422} <= set(statuses)
    assert growth < 100
