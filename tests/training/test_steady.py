"""Memory and open files of a long run with workers (`pytest -m campaign -rP` prints them)."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import environment, photo_folder
from vitlab.runs.run_folder import RunFolder

STEPS, EVERY, WORKERS = 2000, 100, 2
WORDS = ["--model", "ViT(width=16,depth=1,heads=2,mlp=32)/8", "--image-size", "32", "--ema", "0.9"]
WORDS += ["--batch", "8", "--steps", str(STEPS), "--test-every", "50", "--workers", str(WORKERS)]
WORDS += ["--checkpoint-every", "2"]


def usage(pid: int) -> tuple[int, int, list[int]]:
    """Resident bytes and open files of a process, and the processes that it started."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    children = (folder / "task" / str(pid) / "children").read_text().split()
    return pages * 4096, len(list((folder / "fd").iterdir())), [int(each) for each in children]


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_open_files_stay_flat(tmp_path: Path) -> None:
    data = photo_folder(tmp_path / "photos", {"blue": 20, "green": 20, "red": 20})
    words = [sys.executable, "-m", "vitlab", "train", str(data), "--out", str(tmp_path / "run")]
    process = subprocess.Popen([*words, *WORDS], env=environment(OMP_NUM_THREADS="1"))
    journal, samples = RunFolder(tmp_path / "run").journal, []
    while process.poll() is None:
        steps = [line["step"] for line in journal.read() if line["kind"] == "train"]
        if steps and steps[-1] >= EVERY * (len(samples) + 1):
            try:
                own, files, workers = usage(process.pid)
                each = [usage(pid)[:2] for pid in workers]
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            memory = own + sum(memory for memory, _ in each)
            samples.append((steps[-1], memory, files, sum(files for _, files in each), len(each)))
        time.sleep(0.02)
    assert process.returncode == 0
    for step, memory, files, theirs, count in samples:
        print(f"step {step:,}: {memory / 1e6:.0f} MB; {files} files, {theirs} of {count} workers")
    steady = [each for each in samples if each[4] == WORKERS and each[0] > STEPS // 10]
    assert len(steady) > STEPS // EVERY // 2
    first, last = steady[: len(steady) // 2], steady[len(steady) // 2 :]
    assert max(m for _, m, *_ in last) < 1.03 * max(m for _, m, *_ in first)
    files = [max(own + theirs for _, _, own, theirs, _ in half) for half in (first, last)]
    assert files[1] <= files[0] + 8  # batches on their way are open files too
