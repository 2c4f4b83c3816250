"""Passes in chunks: in order, in processes where they take long, and to the end if one dies."""

import os
import time

import numpy as np

from vitlab.data.chunks import FIRST, TOGETHER, read_in_chunks
from vitlab.data.target import Integers

ROWS = np.arange(FIRST + 3 * TOGETHER - 5)[::-1]
HERE = os.getpid()


def slow_at_first(rows: Integers) -> tuple[int, Integers]:
    if rows[0] == ROWS[0]:
        time.sleep(0.1)  # so that the others would take seconds
    return os.getpid(), rows * 2


def fatal_elsewhere(rows: Integers) -> tuple[int, Integers]:
    if os.getpid() != HERE and rows[0] < ROWS[0] // 2:
        os._exit(1)
    return slow_at_first(rows)


def quick(rows: Integers) -> tuple[int, Integers]:
    return os.getpid(), rows * 2


def test_all_rows_are_read_in_order() -> None:
    processes = []
    for read in (quick, slow_at_first, fatal_elsewhere):
        doubled = np.zeros_like(ROWS)
        used = []
        end = 0
        for part, (process, result) in read_in_chunks(read, ROWS, "doubling"):
            assert part.start == end
            end = part.stop
            doubled[part] = result
            used.append(process)
        assert (doubled == 2 * ROWS).all()
        assert used[0] == HERE
        processes.append({*used})
    assert processes[0] == {HERE}
    assert HERE in processes[1]
    assert len(processes[1]) > 1
    assert HERE in processes[2]


def test_nothing_to_read() -> None:
    assert [part for part, _ in read_in_chunks(quick, ROWS[:0], "doubling")] == []
