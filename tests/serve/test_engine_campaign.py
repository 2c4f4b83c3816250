"""The engine against worse, and for longer: run by hand."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import environment
from serve.made import Running, encoded, figure, processes_below
from vitlab.errors import ServiceError

pytestmark = pytest.mark.campaign
PROGRAM = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from serve.made import Running, tiny
running = Running(("tiny", tiny()), max_batch=2)
print("ready", flush=True)
running.loop.run_forever()
"""


def gone(number: int) -> bool:
    state = Path(f"/proc/{number}/stat")
    return not state.exists() or state.read_text().rsplit(") ")[1][0] == "Z"


def test_no_process_outlives_a_service_that_was_killed() -> None:
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", PROGRAM, tests]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"ready\n"
        below = processes_below(service.pid)
        assert len(below) == 3  # two of multiprocessing's own, and a decoder
        service.kill()
    end = time.monotonic() + 10
    while not all(map(gone, below)):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_process_that_forks_is_killed(running: Running) -> None:
    before = processes_below(os.getpid())
    server = int(Path(f"/proc/{before[-1]}/stat").read_text().rsplit(") ")[1].split()[1])
    os.kill(server, signal.SIGKILL)
    failed = 0
    for number in range(20):  # its decoder dies with it, in the midst of one of them
        try:
            assert running.answer(encoded(number))[0].probabilities is not None
        except ServiceError:
            failed += 1
    assert failed <= 1
    assert len(processes_below(os.getpid())) == len(before)


def mutated(count: int) -> list[bytes]:
    """Images with flipped bytes, cut off, or joined to others."""
    generator = np.random.default_rng(5)
    good = [encoded(n, kind, 60, 80) for n in range(3) for kind in ("JPEG", "PNG", "WEBP")]
    good += [encoded(3, "JPEG", 60, 80, progressive=True)]
    found = []
    for _ in range(count):
        data = bytearray(good[generator.integers(len(good))])
        match generator.integers(3):
            case 0:
                for at in generator.integers(0, len(data), 1 + generator.integers(8)):
                    data[at] = generator.integers(256)
            case 1:
                del data[generator.integers(len(data)) :]
            case 2:
                at = generator.integers(len(data))
                data[at:at] = good[generator.integers(len(good))]
        found.append(bytes(data))
    return found


def resident(number: int) -> int:
    """Kilobytes of memory."""
    lines = Path(f"/proc/{number}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_mutated_images(running: Running) -> None:
    """Each has an answer or an error; no process ends, and none grows."""
    own = os.getpid()

    async def all_of(images: list[bytes]) -> int:
        found = [seen for data in images for seen in await running.engine.answer([data])]
        return sum(not seen.error for seen in found)

    running.loop.run_until_complete(all_of(mutated(200)))
    before = [resident(number) for number in (own, *processes_below(own))]
    restarts = figure(running.engine, "decoder_restarts")
    good = running.loop.run_until_complete(all_of(mutated(5000)))
    after = [resident(number) for number in (own, *processes_below(own))]
    assert 0 < good < 5000
    assert figure(running.engine, "decoder_restarts") == restarts
    assert all(late - soon < 20_000 for soon, late in zip(before, after, strict=True))


def test_models_come_and_go_under_load(running: Running) -> None:
    """100 changes while eight clients ask: every answer is whole."""
    from serve.made import nudged, tiny
    from vitlab.weights.deltas import delta

    engine, base = running.engine, tiny()
    tuned = [delta(nudged(base, seed, "attention"), base) for seed in range(4)]
    ended, good = asyncio.Event(), [0]

    async def client(number: int) -> None:
        while not ended.is_set():
            try:
                seen = await engine.answer([encoded(number)], f"m{number % 4}")
                good[0] += seen[0].probabilities is not None
            except ValueError as error:
                assert "unknown model" in str(error)
                await asyncio.sleep(0)

    async def change() -> None:
        for turn in range(100):
            name = f"m{turn % 4}"
            if turn % 3 or name not in {card.name for card in engine.cards()}:
                here = name in {card.name for card in engine.cards()}
                await asyncio.to_thread(engine.add, name, tuned[turn % 4], replace=here)
            else:
                engine.remove(name)
            await asyncio.sleep(0.01)
        ended.set()

    async def both() -> None:
        await asyncio.gather(change(), *(client(number) for number in range(8)))

    running.loop.run_until_complete(both())
    for card in engine.cards()[1:]:
        engine.remove(card.name)
    assert good[0] > 100
