"""A worker that is killed, and a disk that is full: one line, nothing lost."""

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import TINY, photo_folder
from forked import Forked
from vitlab.data.loading.loader import WorkerDiedError, deaths_explained
from vitlab.files import sha256
from vitlab.runs.run_folder import RunFolder
from vitlab.training import checkpoints

WORDS = ["--model", "ViT(width=16,depth=2,heads=2,mlp=32)/8", "--image-size", "32", "--ema", "0.9"]
WORDS += ["--batch", "8", "--epochs", "6", "--recipe", "small", "--area", "1"]


def command(data: Path, folder: Path, *more: str) -> list[str]:
    return ["train", str(data), "--out", str(folder), *WORDS, *more]


def children(pid: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in file.read_text().split()]


def weights(folder: Path) -> str:
    return sha256(folder / "model" / "model.safetensors")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_killed_worker_ends_the_run_saved_and_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    data = photo_folder(tmp_path / "photos", {"blue": 20, "green": 20, "red": 20})
    assert Forked(command(data, tmp_path / "whole")).wait() == 0
    folder = tmp_path / "run"
    words = command(data, folder, "--workers", "2", "--checkpoint-every", "1000")
    process = Forked(words)
    while len(RunFolder(folder).journal.read()) < 8:
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(children(process.pid)[0], signal.SIGKILL)
    code, err = process.wait(), process.err
    assert code == 2, err
    last = err.splitlines()[-1]
    assert last.startswith("vitlab train: a data-loading worker died")
    assert "Traceback" not in err
    found, _ = checkpoints.load(folder / "checkpoints")
    assert found is not None
    assert found.state["step"] >= 6
    assert f"saved after step {found.state['step']:,}: pass --resume" in last
    assert Forked(command(data, folder, "--resume")).wait() == 0
    assert weights(folder) == weights(tmp_path / "whole")


def limited() -> None:
    """From the fourth checkpoint on the kernel takes no file above 9,000 bytes: a full disk."""
    real, saves = checkpoints.save_file, 0

    def save(tensors: Any, file: Path) -> None:
        nonlocal saves
        saves += 1
        if saves == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
        real(tensors, file)

    checkpoints.save_file = save  # in a process of its own


def test_a_disk_that_takes_no_more_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    folder, words = tmp_path / "run", ["train", "digits", "--model", TINY["model"]]
    words += ["--epochs", "1", "--batch", "256", "--out", str(folder), "--checkpoint-every", "0"]
    process = Forked(words, before=limited)
    assert process.wait() == 2
    err = process.err
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("vitlab train: cannot write ")
    assert last.endswith("file too large")
    found, remarks = checkpoints.load(folder / "checkpoints")
    assert found is not None
    assert (found.state["step"], remarks) == (3, [])
    resumed = vitlab.train(
        vitlab.recipe("digits", model=TINY["model"], epochs=1, batch=256), folder, resume=True
    )
    assert resumed.metrics["images"] == 359


@pytest.mark.parametrize(
    ("error", "dead"),
    [
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), True),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (FileNotFoundError(2, "No such file or directory"), True),  # a socket's, which has no name
        (EOFError(), True),
        (FileNotFoundError(2, "No such file or directory", "photos/red/001.png"), False),
        (FileNotFoundError("Caught FileNotFoundError in DataLoader worker process 0."), False),
        (RuntimeError("Caught RuntimeError in DataLoader worker process 0."), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_a_death_is_told_from_what_a_living_worker_says(error: Exception, dead: bool) -> None:
    with pytest.raises(WorkerDiedError if dead else type(error)), deaths_explained():
        raise error
