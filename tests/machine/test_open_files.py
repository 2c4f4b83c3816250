"""The limit on open files: raised where the system lets it, else refused before anything begins."""

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import environment
from golden.rules import without_progress


@pytest.mark.parametrize(("soft", "hard", "workers"), [(16, 4096, 2), (16, 16, 0)])
def test_a_low_limit_is_raised(soft: int, hard: int, workers: int) -> None:
    code = f"""import resource
from vitlab.machine.open_files import check_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
check_open_files({workers})
assert resource.getrlimit(resource.RLIMIT_NOFILE) == ({48 if workers else soft}, {hard})"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_16_files_are_too_few_for_workers(tmp_path: Path) -> None:
    words = ["train", "digits", "--out", str(tmp_path / "run"), "--workers", "2"]
    line = ["bash", "-c", 'ulimit -n 16; "$@"', "_", sys.executable, "-m", "vitlab", *words]
    done = subprocess.run(line, capture_output=True, text=True, env=environment())
    advice = "workers=2 keep up to 48 files open, but this shell allows 16: raise its limit "
    said = without_progress(done.stderr)
    assert said == f"vitlab train: {advice}(ulimit -n 48), or pass --workers 0\n"
    assert done.returncode == 2
    assert not (tmp_path / "run").exists()
