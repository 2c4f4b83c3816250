"""Experiments killed at random moments: the same rows, to the bit, as of those that were not.

`VITLAB_CAMPAIGN=30 pytest -m campaign tests/experiments/test_killed.py -rP`, 30 being the kills;
with `OMP_NUM_THREADS=1`, so that rows of a cluster have the bits of one process.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from conftest import call
from forked import Forked
from steady import PATIENCE, wait_until

WORDS = (
    "train", "digits", "--model", "ViT(width=16,depth=1,heads=2,mlp=32)/4", "--precision", "fp32",
    "--workers", "0", "--report", "no", "--device", "cpu", "--checkpoint-every", "0", "--json",
)  # fmt: skip
LONG = (*WORDS, "--epochs", "2", "--batch", "64", "--seeds", "3", "--sweep", "1e-3", "1e-2")
SLOWEST = 900.0  # seconds of a command
TASK = "ray::_do"  # a process that computes a cell on a cluster


def started(words: Sequence[str], out: Path) -> "subprocess.Popen[str]":
    """The command, which continues what is in the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "vitlab", *words, "--resume", "--out", str(out)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def rows(words: Sequence[str], out: Path) -> list[dict[str, Any]]:
    """Its rows, once all is done."""
    process = started(words, out)
    try:
        text, err = process.communicate(timeout=SLOWEST)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return of_result(text)


def of_result(text: str) -> list[dict[str, Any]]:
    """The rows of the sweep and of the seeds, without times and places."""
    result = json.loads(text)
    found = [*result.get("sweep", {}).get("runs", ()), *result["runs"]]
    return [{k: v for k, v in row.items() if k not in ("seconds", "run")} for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ended_in_its_first_run_it_has_the_same_rows(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two at a time, in a group of its own, as a terminal starts it; then one after the other."""
    words = (*WORDS, "--epochs", "1", "--batch", "256", "--seeds", "2", "--resume", "--out")
    process = Forked([*words, str(tmp_path / "cut"), "--jobs", "2"], os.setsid)
    wait_until(lambda: list(tmp_path.glob("cut/*/checkpoints/*")) or process.poll() is not None)
    if number == signal.SIGINT:  # as Ctrl-C is sent
        os.killpg(process.pid, number)
        assert process.wait() == 130
        (line,) = (each for each in process.err.splitlines() if each.startswith("vitlab train: "))
        assert line == "vitlab train: interrupted: pass --resume to continue"
        assert "Traceback" not in process.err
    else:
        process.send_signal(number)
        assert process.wait() == -number, "it was to be killed before its end"
    again = call(capsys, *words, str(tmp_path / "cut"))
    assert again[0] == 0, again[2]
    whole = call(capsys, *words, str(tmp_path / "whole"))
    assert "no series of seeds in " in whole[2]
    assert of_result(again[1]) == of_result(whole[1])


def kill_many(words: Sequence[str], out: Path, moments: random.Random, longest: float) -> None:
    """Begin the command again and again, and kill it at a random moment each time."""
    kills, hit = int(os.environ.get("VITLAB_CAMPAIGN", "30")), 0
    for _ in range(kills):
        process = started(words, out)
        try:
            process.communicate(timeout=moments.uniform(0.0, longest))
        except subprocess.TimeoutExpired:
            hit += 1
            process.kill()
            process.communicate()
    print(f"{hit} of {kills} commands were killed before their end")


@pytest.mark.campaign
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_killed_many_times_it_has_the_same_rows(jobs: str, tmp_path: Path) -> None:
    words = (*LONG, "--jobs", jobs)
    kill_many(words, tmp_path / "cut", random.Random(jobs), 20.0)
    assert rows(words, tmp_path / "cut") == rows(words, tmp_path / "whole")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray cluster of this machine with room for two cells, which outlives the commands."""
    pytest.importorskip("ray")
    with socket.socket() as free, TemporaryDirectory(prefix="ray", dir="/tmp") as place:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        monkeypatch.setenv("RAY_AUTH_MODE", "token")  # of this cluster alone
        monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
        words = ("--head", "--num-cpus=8", f"--port={port}", f"--temp-dir={place}", "--block")
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *words,
             "--disable-usage-stats", "--include-dashboard=false", "--node-ip-address=127.0.0.1",
             "--object-store-memory=100000000"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)


def tasks() -> list[int]:
    psutil = pytest.importorskip("psutil")
    found = psutil.process_iter(["cmdline"])
    return [each.pid for each in found if TASK in " ".join(each.info["cmdline"] or [])]


@pytest.mark.campaign
@pytest.mark.usefixtures("cluster")
def test_on_a_ray_cluster_it_has_the_rows_of_one_process(tmp_path: Path) -> None:
    """Killed commands, an interrupted one, and one whose tasks are killed under it."""
    words, out = (*LONG, "--on", "ray"), tmp_path / "cut"
    kill_many(words, out, random.Random("ray"), 30.0)
    found = rows(words, out)
    assert found == rows(LONG, tmp_path / "whole")
    process = started(words, tmp_path / "stopped")
    wait_until(lambda: list(tmp_path.glob("stopped/*/*/checkpoints/*")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SLOWEST)
    assert (process.returncode, "interrupted: pass --resume to continue" in err) == (130, True), err
    assert rows(words, tmp_path / "stopped") == found
    process, killed = started(words, tmp_path / "dying"), list[int]()
    while process.poll() is None and len(killed) < 3:
        time.sleep(1.0)
        for pid in tasks()[:1]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    process.communicate(timeout=SLOWEST)
    print(f"{len(killed)} tasks were killed; the command ended with {process.returncode}")
    assert rows(words, tmp_path / "dying") == found
