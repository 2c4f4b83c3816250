"""Runs stopped by random signals at random moments, resumed until they are finished.

`VITLAB_CAMPAIGN=30 pytest -m campaign tests/training/test_campaign.py`, 30 being the runs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitlab.files import sha256

RUNS = int(os.environ.get("VITLAB_CAMPAIGN", "30"))
MODEL = ["--model", "ViT(width=16,depth=2,heads=2,mlp=32)/4", "--dropout", "0.1"]
LENGTH = ["--ema", "0.9", "--epochs", "20", "--batch", "128", "--test-every", "2"]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
STOPS = 3  # a run, at the most


def start(folder: Path, *more: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "vitlab", "train", "digits", "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*words, *MODEL, *LENGTH, *more],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The weights, and what the journal says but for speeds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("kind", "step", "epoch", "loss", "accuracy", "lr", "nll", "ece")
    kept = [{key: line[key] for key in keys if key in line} for line in lines]
    return sha256(folder / "model" / "model.safetensors"), kept


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, Any], float]:
    """What comes of a run that nobody stops, and how long it takes."""
    folder, begin = tmp_path_factory.mktemp("whole") / "run", time.monotonic()
    assert start(folder).wait() == 0
    return outcome(folder), time.monotonic() - begin


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(RUNS))
def test_stopped_anyhow_and_resumed_the_bits_are_the_same(
    number: int, undisturbed: tuple[tuple[str, Any], float], tmp_path: Path
) -> None:
    want, length = undisturbed
    generator, folder, stops = np.random.default_rng((0, number)), tmp_path / "run", 0
    every = str(generator.choice(["0", "0.05", "1000"]))
    for _ in range(STOPS + 1):
        workers = str(generator.integers(0, 3))
        more = ("--resume", "--workers", workers, "--checkpoint-every", every)
        process = start(folder, *more)
        if stops < STOPS:
            word = SIGNALS[generator.integers(len(SIGNALS))]
            try:
                process.wait(float(generator.uniform(0, length)))
            except subprocess.TimeoutExpired:
                process.send_signal(word)
                stops += 1
                _, err = process.communicate(timeout=300)
                # Ctrl-C while Python itself still starts is Python's to tell of
                assert "Traceback" not in err or "KeyboardInterrupt" in err, err
                continue
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        break
    print(f"run {number}: {stops} stops, checkpoints every {every} s")
    assert outcome(folder) == want
