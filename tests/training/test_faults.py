"""File operations of a run that fail, or kill it: `--resume` finishes the run.

`VITLAB_FAULTS=999 pytest -m campaign tests/training/test_faults.py -rP` tries every operation in
every way; a smaller number tries so many operations, evenly spread. A library that counts file
operations is compiled and preloaded into a process that has imported everything; each session is
forked from it. Its report is drawn each time.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import environment
from vitlab.files import sha256

POINTS = int(os.environ.get("VITLAB_FAULTS", "12"))
WAYS = {"kill": 1, "EIO": 2, "ENOSPC": 3, "full from then on": 4, "short write": 5, "torn write": 6}
WRITES = "2"  # of an operation, in the library's words
WORDS = ["train", "digits", "--model", "ViT(width=16,depth=1,heads=2,mlp=32)/4", "--workers", "0"]
WORDS += ["--epochs", "1", "--batch", "512", "--ema", "0.9", "--test-every", "1"]
WORDS += ["--checkpoint-every", "0", "--check-duplicates", "no", "--resume"]

SERVER = """
import ctypes, json, os, sys
import vitlab.commands.train, vitlab.console.parsing, vitlab.training.run
import torch._dynamo  # which every session would import by itself
from vitlab.cli import main
from vitlab.effort import Effort
brief = Effort(resamples=10)
for line in sys.stdin:
    folder, number, way, said, trace, words = json.loads(line)
    pid = os.fork()
    if not pid:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(2, 1)
        fd = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if trace else -1
        ctypes.CDLL(None).fault_begin(os.fsencode(folder), ctypes.c_long(number), way, fd)
        code = 1
        try:
            main(words, effort=brief)
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Operation(NamedTuple):
    """A file operation of a run: `rename`, what it does, and the path in the run's folder."""

    name: str
    kind: str
    path: str


class Server:
    """Starts sessions of a run, one at a time."""

    def __init__(self, library: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env=environment(OMP_NUM_THREADS="1", LD_PRELOAD=str(library)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def session(
        self, folder: Path, number: int = 0, way: int = 0, trace: str = ""
    ) -> tuple[int, str]:
        """Train or go on, the nth operation going wrong in some way: exit status, and words."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        said = folder.with_name("said")
        words = [*WORDS, "--out", str(folder)]
        line = json.dumps([str(folder), number, way, str(said), trace, words])
        print(line, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline()), said.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Where sessions come from."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and Linux")
    library = tmp_path_factory.mktemp("library") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    server = Server(library)
    with server.process:
        yield server


def outcome(folder: Path) -> tuple[str, str, list[dict[str, Any]]]:
    """The model, and what the journal says but for speeds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("kind", "step", "epoch", "loss", "accuracy", "lr", "nll", "ece", "notes", "damaged")
    kept = [{key: line[key] for key in keys if key in line} for line in lines]
    model = folder / "model"
    return sha256(model / "model.safetensors"), sha256(model / "config.json"), kept


class Whole(NamedTuple):
    """A run that nothing happened to."""

    outcome: tuple[str, str, list[dict[str, Any]]]
    operations: list[Operation]
    names: set[str]


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What comes of it, and what it did to files."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trace = folder.with_name("trace")
    code, said = server.session(folder, trace=str(trace))
    assert code == 0, said
    found = [Operation(*line.split(" ", 2)) for line in trace.read_text().splitlines()]
    return Whole(outcome(folder), found, names(folder))


def names(folder: Path) -> set[str]:
    """All files and folders of a run."""
    return {str(each.relative_to(folder)) for each in folder.rglob("*")}


def survive(server: Server, whole: Whole, folder: Path, number: int, way: str) -> int:
    """Let an operation go wrong, resume, and compare; the exit status before the resume."""
    code, said = server.session(folder, number, WAYS[way])
    case = f"{way} at {number}, {whole.operations[number - 1]}: {said}"
    assert "Traceback" not in said, case
    assert code in ((-9,) if way in ("kill", "torn write") else (0, 2)), case
    if code == 2:
        assert said.splitlines()[-1].startswith("vitlab train: "), case
    again, said = server.session(folder)
    assert again == 0, case + said
    assert "Traceback" not in said, case + said
    assert outcome(folder) == whole.outcome, case
    assert names(folder) == whole.names, case
    return code


CASES = {  # a way, an operation, the path, and which of these
    "run.toml before it is there": ("kill", "rename", "/run.toml", 0),
    "the journal's line, half of it": ("torn write", "write", "/metrics.jsonl", 1),
    "the journal on a disk that fails": ("EIO", "fsync", "/metrics.jsonl", 1),
    "a checkpoint on a full disk": ("full from then on", "fsync", "/checkpoints", 1),
    "a checkpoint that was replaced": ("kill", "unlink", "/checkpoints/.step-000000003", 0),
    "the model before it is there": ("kill", "rename", "/model", 0),
    "the result on a full disk": ("ENOSPC", "write", "/metrics.jsonl", -1),
    "the report, whose result is there": ("kill", "rename", "/report.html", 0),
    "the report on a disk that fails": ("EIO", "rename", "/report.html", 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_survives(case: str, server: Server, whole: Whole, tmp_path: Path) -> None:
    way, name, path, which = CASES[case]
    places = [
        number
        for number, each in enumerate(whole.operations, 1)
        if each.name == name
        and (each.path == path or ("/." in path and each.path.startswith(path)))
    ]
    code = survive(server, whole, tmp_path / "run", places[which], way)
    assert code == (-9 if way in ("kill", "torn write") else 2)


@pytest.mark.campaign
@pytest.mark.parametrize("way", WAYS)
def test_a_run_survives_each_operation_in_every_way(
    way: str, server: Server, whole: Whole, tmp_path: Path
) -> None:
    able = [
        number
        for number, each in enumerate(whole.operations, 1)
        if each.kind == WRITES or way not in ("short write", "torn write")
    ]
    chosen = able[:: max(1, -(-len(able) // POINTS))]
    codes = Counter(
        survive(server, whole, tmp_path / str(number) / "run", number, way)
        for number in chosen
        if not (tmp_path / str(number)).mkdir()
    )
    print(f"{way}: {len(chosen)} of {len(able)} operations; exits {dict(codes)}")
