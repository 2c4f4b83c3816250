"""A worker that is killed, and a disk that is full: one line, nothing lost."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vitlab
from conftest import photo_folder
from vitlab.files import sha256
from vitlab.training import checkpoint
from vitlab.training.folder import Journal

WORDS = ["--model", "ViT(width=16,depth=2,heads=2,mlp=32)/8", "--image-size", "32", "--ema", "0.9"]
WORDS += ["--batch", "8", "--epochs", "30", "--recipe", "small", "--area", "1"]


def command(data: Path, folder: Path, *more: str) -> list[str]:
    start = [sys.executable, "-m", "vitlab", "train", str(data), "--out", str(folder)]
    return [*start, *WORDS, *more]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def children(pid: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in file.read_text().split()]


def weights(folder: Path) -> str:
    return sha256(folder / "model" / "model.safetensors")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_killed_worker_ends_the_run_saved_and_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    data = photo_folder(tmp_path / "photos", {"blue": 20, "green": 20, "red": 20})
    subprocess.run(
        command(data, tmp_path / "whole"), env=environment(), capture_output=True, check=True
    )
    folder = tmp_path / "run"
    words = command(data, folder, "--workers", "2", "--checkpoint-every", "1000")
    process = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True)
    while len(Journal(folder).read()) < 20:
        time.sleep(0.01)
        assert process.poll() is None
    os.kill(children(process.pid)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    last = err.splitlines()[-1]
    assert last.startswith("vitlab train: a worker process died")
    assert "Traceback" not in err
    found, _ = checkpoint.load(folder / "checkpoints")
    assert found is not None
    assert found.state["step"] >= 20
    assert f"saved after step {found.state['step']:,}, --resume goes on" in last
    subprocess.run(
        command(data, folder, "--resume"), env=environment(), capture_output=True, check=True
    )
    assert weights(folder) == weights(tmp_path / "whole")


LIMITED = """
import resource, sys
from vitlab.cli import main
size = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
main(sys.argv[1:])
"""


def test_a_disk_that_takes_no_more_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    folder, words = tmp_path / "run", ["train", "digits", "--epochs", "40", *WORDS]
    words += ["--out", str(folder), "--checkpoint-every", "0"]
    words[words.index("--image-size") + 1] = "8"
    words[words.index("--batch") + 1] = "256"
    first = vitlab.recipe("digits", epochs=0.1, batch=256, model=WORDS[1], ema=0.9)
    vitlab.train(first, tmp_path / "first")
    size = max(f.stat().st_size for f in (tmp_path / "first" / "checkpoints").glob("*/*"))
    # the journal grows until it reaches the limit, which no checkpoint does
    start = [sys.executable, "-c", LIMITED, str(size + 2000)]
    done = subprocess.run([*start, *words], env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "cannot write" in done.stderr.splitlines()[-1]
    assert "file too large" in done.stderr.splitlines()[-1]
    found, remarks = checkpoint.load(folder / "checkpoints")
    assert found is not None
    assert remarks == []
    resumed = subprocess.run(
        [sys.executable, "-m", "vitlab", *words, "--resume"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert resumed.returncode == 0
    assert f"going on after step {found.state['step']:,}" in resumed.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
