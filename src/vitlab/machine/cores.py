"""The number of processor cores for this process: containers often get fewer than there are."""

import os
from math import ceil

from vitlab.machine.control_groups import cpu_quota


def cores() -> int:
    """Return the cores that this process may use, at least 1.

    The machine's, less those that its affinity (`taskset`, Slurm) or the quota of its control group
    (`docker run --cpus`, Kubernetes) takes away.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    share = cpu_quota()
    return count if share is None else max(1, min(count, ceil(share)))


def limit_threads() -> None:
    """Let PyTorch, imported later, start no more threads than there are cores for this process.

    It knows the affinity but not the quota, and threads beyond it only stop each other. Whoever has
    set OMP_NUM_THREADS has decided already.
    """
    share = cpu_quota()
    if share is not None and ceil(share) < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))
