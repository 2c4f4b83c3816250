"""Runs of several processes, killed and stopped again and again (pytest -m campaign)."""

import json
import os
import signal
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from conftest import BRIEF
from distributed.ranks import start_ranks
from distributed.test_distributed import (
    PLAIN,
    curve,
    run,
    steps_done,
)
from steady import PATIENCE
from steps import each_step
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.order import Stream
from vitlab.recipes.recipe import Host
from vitlab.training.state import RunState
from vitlab.training.step import Trainer

pytestmark = pytest.mark.campaign
LONG = PLAIN | {"batch": 250, "epochs": 20, "test_every": 10}
IMAGES, STEPS = 1438, 116


@pytest.fixture(autouse=True, scope="module")
def _few_digits() -> None:
    """All of them."""


def noting(folder: Path, notes: Path, host: Host) -> str:
    """One process of a run that writes down which images it learns at which step."""

    def note(trainer: Trainer, state: RunState, batch: Batch) -> None:
        world = trainer.world
        with (notes / f"{os.getpid()}-{world.rank}-{world.size}").open("a") as file:
            file.write(json.dumps([state.step - 1, batch.indices.tolist()]) + "\n")

    with each_step(after=note):
        return run(folder, host=host, **LONG)


def test_thirty_stops_with_other_worlds_between(tmp_path: Path) -> None:
    generator, folder = np.random.default_rng(0), tmp_path / "run"
    seen: dict[int, list[int]] = {}
    done: dict[str, int] = defaultdict(int)
    slowest = 0.0
    for attempt in range(31):
        notes = tmp_path / f"notes-{attempt}"
        notes.mkdir()
        size, shard = int(generator.choice([1, 2, 4])), bool(generator.integers(2))
        host = Host(
            workers=int(generator.integers(2)),
            shard=shard and size > 1,
            checkpoint_every=float(generator.choice([0, 0.1])),
            effort=BRIEF,
        )
        processes = start_ranks(size, partial(noting, folder, notes, host), notes)
        if attempt < 30:
            goal = steps_done(folder) + int(generator.integers(1, 5))
            while steps_done(folder) < goal and any(each.is_alive() for each in processes):
                time.sleep(0.01)
            how = signal.Signals(generator.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            os.kill(processes[int(generator.integers(size))].pid, how)
            done[f"{how.name} of {size}{' in shards' if host.shard else ''}"] += 1
        start = time.monotonic()
        for each in processes:
            each.join(PATIENCE)
            assert each.exitcode is not None, (attempt, size, host)
        slowest = max(slowest, time.monotonic() - start) if attempt < 30 else slowest
        steps: dict[int, list[int]] = defaultdict(list)
        parts: dict[int, int] = defaultdict(int)
        for file in notes.glob(f"*-{size}"):
            for line in file.read_text().splitlines():
                step, indices = json.loads(line)
                steps[step] += indices
                parts[step] += 1
        seen |= {step: steps[step] for step in steps if parts[step] == size}
    run(folder, **LONG)
    for step in range(STEPS):
        if step in seen:  # all processes lived to note it
            want = Stream(0, IMAGES, 250).samples(step).indices.tolist()
            assert sorted(seen[step]) == sorted(want)
    run(tmp_path / "alone", **LONG)
    ours, theirs = curve(folder), curve(tmp_path / "alone")
    assert [each[:2] for each in ours] == [each[:2] for each in theirs]
    far = max(abs(a[2] / b[2] - 1) for a, b in zip(ours, theirs, strict=True))
    print(f"\n{dict(done)}; {len(seen)} of {STEPS} steps noted; loss off by {far:.1e} at the most")
    print(f"slowest end {slowest:.1f} s")
    assert far < 1e-2
