"""Experiments killed at random moments: the same rows, to the bit, as of those that were not.

`VITLAB_CAMPAIGN=30 pytest -m campaign tests/experiments/test_killed.py -rP`, 30 being the kills.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

WORDS = (
    "train", "digits", "--model", "ViT(width=16,depth=1,heads=2,mlp=32)/4", "--precision", "fp32",
    "--workers", "0", "--report", "no", "--device", "cpu", "--checkpoint-every", "0", "--json",
)  # fmt: skip
SHORT = (*WORDS, "--epochs", "1", "--batch", "256", "--seeds", "2", "--jobs", "2")
LONG = (*WORDS, "--epochs", "2", "--batch", "64", "--seeds", "3", "--sweep", "1e-3", "1e-2")
SLOWEST = 900.0  # seconds of a command


def started(words: Sequence[str], out: Path) -> "subprocess.Popen[str]":
    """The command, which continues what is in the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "vitlab", *words, "--resume", "--out", str(out)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def rows(words: Sequence[str], out: Path) -> list[dict[str, Any]]:
    """The rows of the sweep and of the seeds, once all is done, without times and places."""
    process = started(words, out)
    try:
        text, err = process.communicate(timeout=SLOWEST)
    finally:
        process.kill()
    assert process.returncode == 0, err
    result = json.loads(text)
    found = [*result.get("sweep", {}).get("runs", ()), *result["runs"]]
    return [{k: v for k, v in row.items() if k not in ("seconds", "run")} for row in found]


def test_killed_in_its_first_run_it_has_the_same_rows(tmp_path: Path) -> None:
    process = started(SHORT, tmp_path / "cut")
    while not list(tmp_path.glob("cut/*/checkpoints/*")) and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert not list(tmp_path.glob("cut/report.html")), "it was to be killed before its end"
    assert rows(SHORT, tmp_path / "cut") == rows(SHORT, tmp_path / "whole")


@pytest.mark.campaign
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_killed_many_times_it_has_the_same_rows(jobs: str, tmp_path: Path) -> None:
    kills, moments = int(os.environ.get("VITLAB_CAMPAIGN", "30")), random.Random(jobs)
    words, hit = (*LONG, "--jobs", jobs), 0
    for _ in range(kills):
        process = started(words, tmp_path / "cut")
        try:
            process.communicate(timeout=moments.uniform(0.0, 20.0))
        except subprocess.TimeoutExpired:
            hit += 1
            process.kill()
            process.communicate()
    print(f"{hit} of {kills} commands were killed before their end")
    assert rows(words, tmp_path / "cut") == rows(words, tmp_path / "whole")
