"""Where a process begins in a list that several processes go through, whoever started them."""

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, lie far apart, however many there are
# what numbers the processes of torchrun, of SLURM (in a step, in an array) and of a Kubernetes Job
NUMBERS = ("RANK", "SLURM_PROCID", "SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")


def turned(items: Sequence[T]) -> list[T]:
    """Return a list from where this process begins, and then what comes before it.

    What one process does need not be done by the others when they come to it.
    """
    first = int(len(items) * place_among(os.environ))
    return [*items[first:], *items[:first]]


def place_among(environment: Mapping[str, str]) -> float:
    """Return where a process begins, from 0 to below 1; the first one at 0."""
    if "RANK" in environment:  # torchrun's number counts the processes of all tasks
        environment = {"RANK": environment["RANK"]}
    numbers = [environment.get(name, "") for name in NUMBERS]
    return sum(int(number) for number in numbers if number.isdecimal()) * GOLDEN % 1
