"""What memory is free, as the system reports it and as containers limit it."""

from pathlib import Path

import pytest

from vitlab import device as devices
from vitlab.machine import control_groups

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB free, whose groups are below a folder."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:  {8 * GIB // 1024} kB\n")
    monkeypatch.setattr(devices, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(control_groups, "PROCESS", tmp_path)
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path / "groups")
    return tmp_path


def limit(group: Path, most: str, used: int, cached: int, names: tuple[str, str], key: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / names[0]).write_text(f"{most}\n")
    (group / names[1]).write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\n{key} {cached}\n")


def test_without_limits_it_is_what_the_machine_has(machine: Path) -> None:
    assert devices.free_memory() == 8 * GIB
    (machine / "cgroup").write_text("nonsense")
    assert devices.free_memory() == 8 * GIB


def test_the_tightest_limit_of_a_group_and_its_parents_counts(machine: Path) -> None:
    (machine / "cgroup").write_text("0::/job/step\n")
    names, root = control_groups.LIMITS[0], machine / "groups"
    limit(root / "job" / "step", "max", 0, 0, names, "inactive_file")
    assert devices.free_memory() == 8 * GIB
    limit(root / "job", str(4 * GIB), 3 * GIB, GIB, names, "inactive_file")
    assert devices.free_memory() == 2 * GIB  # files in the cache are given up
    limit(root / "job" / "step", str(GIB), 2 * GIB, 0, names, "inactive_file")
    assert devices.free_memory() == 0


def test_groups_of_the_first_version(machine: Path) -> None:
    (machine / "cgroup").write_text("4:memory:/job\n3:cpu:/other\n0::/\n")
    root = machine / "groups" / "memory"
    limit(root, str(2**63 - 4096), 5 * GIB, 0, control_groups.LIMITS[1], "total_inactive_file")
    assert devices.free_memory() == 8 * GIB
    limit(root / "job", str(6 * GIB), 4 * GIB, GIB, control_groups.LIMITS[1], "total_inactive_file")
    assert devices.free_memory() == 3 * GIB
