"""Limits by Linux control groups: containers get less than the machine has."""

from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")
# what a container may take, and has taken: files of cgroup v2, then of v1
LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def cpu_quota() -> float | None:
    """Return the cores' worth of time that the control group allows; None for no limit."""
    with suppress(OSError, ValueError):
        allowed, period = (GROUPS / "cpu.max").read_text("ascii").split()
        return None if allowed == "max" else int(allowed) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        allowed = (GROUPS / "cpu" / "cpu.cfs_quota_us").read_text("ascii")
        period = (GROUPS / "cpu" / "cpu.cfs_period_us").read_text("ascii")
        return None if int(allowed) < 0 else int(allowed) / int(period)
    return None


def memory_left() -> list[int]:
    """Return the bytes that each limit of this process's group and its parents leaves."""
    found = []
    with suppress(OSError, ValueError):
        for line in (PROCESS / "cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            root = GROUPS / controllers
            group = root / name.lstrip("/")
            while group == root or root in group.parents:  # every parent has a limit too
                found += _left_in(group)
                group = group.parent
    return found


def _left_in(group: Path) -> list[int]:
    """Return what one group's limit leaves; cached files count as free unless they are in use."""
    for limit, usage in LIMITS:
        with suppress(OSError, ValueError):  # "max" is no number: there is no limit
            most, used = (
                int((group / name).read_text(encoding="ascii")) for name in (limit, usage)
            )
            rows = (group / "memory.stat").read_text(encoding="ascii").splitlines()
            stat = dict(row.split() for row in rows)
            cached = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
            return [max(0, most - used + cached)]
    return []
