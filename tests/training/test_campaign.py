"""Runs stopped by random signals at random moments, resumed until they are finished.

`VITLAB_CAMPAIGN=30 pytest -m campaign tests/training/test_campaign.py -rP`, 30 being the runs.
Every session of a run is a process of its own, forked from one that has imported everything, so
that the signals come while it trains and not while Python starts.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitlab.files import sha256

RUNS = int(os.environ.get("VITLAB_CAMPAIGN", "30"))
WORDS = ["train", "digits", "--model", "ViT(width=16,depth=2,heads=2,mlp=32)/4", "--dropout", "0.1"]
WORDS += ["--ema", "0.9", "--epochs", "8", "--batch", "64", "--test-every", "2"]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
STOPS = 4  # a run, at the most

SERVER = """
import json, os, signal, sys
import vitlab.commands.train, vitlab.console.parsing, vitlab.report.gather, vitlab.training.run
from vitlab.cli import main
from vitlab.console.interrupts import Interrupts
signals = (signal.SIGINT, signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until a session has its handlers
for line in sys.stdin:
    said, words = json.loads(line)
    pid = os.fork()
    if not pid:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(2, 1)
        code = 1
        try:
            with Interrupts() as interrupts:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
                main(words, interrupts)
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Stop:
    """A signal, once the journal has so many lines, and some milliseconds later still."""

    journal: Path
    lines: int
    later: float
    signal: int

    def due(self) -> bool:
        """Whether it is time."""
        return lines_of(self.journal) >= self.lines


def lines_of(journal: Path) -> int:
    """Lines written so far."""
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


class Server:
    """Starts sessions, one at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def session(self, said: Path, words: list[str], stop: Stop | None = None) -> int:
        """Run a command, and send it a signal some time; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(said), words]).encode() + b"\n")
        self.process.stdin.flush()
        pid = self._number()
        while stop is not None and not self._done(0.002):
            if stop.due():
                if not self._done(stop.later):
                    os.kill(pid, stop.signal)
                break
        return self._number()

    def _done(self, seconds: float) -> bool:
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def _number(self) -> int:
        assert self.process.stdout is not None
        text = b""
        while not text.endswith(b"\n"):  # by the byte: a buffer would hide a line from `select`
            text += os.read(self.process.stdout.fileno(), 1)
        return int(text)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Where sessions come from."""
    server = Server()
    with server.process:
        yield server


def outcome(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The weights, and what the journal says but for speeds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("kind", "step", "epoch", "loss", "accuracy", "lr", "nll", "ece")
    kept = [{key: line[key] for key in keys if key in line} for line in lines]
    return sha256(folder / "model" / "model.safetensors"), kept


@pytest.fixture(scope="module")
def undisturbed(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[dict[str, Any]]]:
    """What comes of a run that nobody stops."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    code = server.session(folder.parent / "said", [*WORDS, "--out", str(folder)])
    assert code == 0, (folder.parent / "said").read_text()
    return outcome(folder)


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(RUNS))
def test_stopped_anyhow_and_resumed_the_bits_are_the_same(
    number: int,
    server: Server,
    undisturbed: tuple[str, list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    generator, folder, codes = np.random.default_rng((0, number)), tmp_path / "run", []
    every = str(generator.choice(["0", "0.05", "1000"]))
    for turn in range(STOPS + 1):
        workers = str(generator.integers(0, 3))
        words = [*WORDS, "--out", str(folder), "--resume", "--workers", workers]
        have = lines_of(folder / "metrics.jsonl")  # cut back to the checkpoint on resuming
        lines = int(generator.integers(have, len(undisturbed[1])))
        later, signum = float(generator.uniform(0, 0.05)), int(generator.choice(SIGNALS))
        stop = Stop(folder / "metrics.jsonl", lines, later, signum) if turn < STOPS else None
        codes.append(server.session(tmp_path / "said", [*words, "--checkpoint-every", every], stop))
        said = (tmp_path / "said").read_text()
        # a worker whose parent is killed while it hands a batch over says so in its own way
        assert "Traceback" not in said or codes[-1] < 0, said
        assert codes[-1] in (0, 130, -signal.SIGKILL), said
        assert codes[-1] != 130 or said.splitlines()[-1].startswith("vitlab train: "), said
        assert codes[-1] < 0 or {each.name for each in folder.rglob(".*")} <= {".lock"}, said
        if codes[-1] == 0:
            break
    print(f"run {number}: exits {codes}, checkpoints every {every} s")
    assert len(codes) > 1
    assert outcome(folder) == undisturbed
