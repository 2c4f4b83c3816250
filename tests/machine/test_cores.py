"""How many cores a process may use, by made-up control groups."""

import os
from pathlib import Path

import pytest

from vitlab.machine import control_groups
from vitlab.machine import cores as room


def group(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, 8),
        ({"cpu.max": "nonsense"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "0"}, 8),
    ],
)
def test_the_smaller_of_affinity_and_quota(
    files: dict[str, str], allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "GROUPS", group(tmp_path, files))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert room.cores() == allowed
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    room.limit_threads()
    limited = control_groups.cpu_quota() is not None and allowed < 8
    assert os.environ.get("OMP_NUM_THREADS") == (str(allowed) if limited else None) or (
        files.get("cpu.max", "").startswith("64")  # 64 of 64 cores: nothing to limit
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    room.limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "5"


def test_at_least_one_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert room.cores() == 1
