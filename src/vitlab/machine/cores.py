"""How many processor cores this process may use: containers often get fewer than there are."""

import os
from contextlib import suppress
from math import ceil
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # of Linux


def cores() -> int:
    """Return the cores that this process may use, at least 1.

    The machine's, less those that its affinity (`taskset`, Slurm) or the quota of its control group
    (`docker run --cpus`, Kubernetes) takes away.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    share = quota()
    return count if share is None else max(1, min(count, ceil(share)))


def quota() -> float | None:
    """Return the cores' worth of time that the control group allows; None for no limit."""
    with suppress(OSError, ValueError):
        allowed, period = (GROUPS / "cpu.max").read_text("ascii").split()
        return None if allowed == "max" else int(allowed) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        allowed = (GROUPS / "cpu" / "cpu.cfs_quota_us").read_text("ascii")
        period = (GROUPS / "cpu" / "cpu.cfs_period_us").read_text("ascii")
        return None if int(allowed) < 0 else int(allowed) / int(period)
    return None


def limit_threads() -> None:
    """Let PyTorch, imported later, start no more threads than there are cores for this process.

    It knows the affinity but not the quota, and threads beyond it only stop each other. Whoever has
    set OMP_NUM_THREADS has decided already.
    """
    share = quota()
    if share is not None and ceil(share) < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))
