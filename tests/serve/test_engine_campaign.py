"""The engine against worse, and for longer: run by hand."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import environment
from serve.made import Running, encoded, processes_below
from steady import wait_until
from vitlab.errors import ServiceError

pytestmark = pytest.mark.campaign
PROGRAM = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from serve.made import Running, tiny
running = Running(("tiny", tiny()), max_batch=2)
print("ready", flush=True)
running.loop.run_forever()
"""


def gone(number: int) -> bool:
    state = Path(f"/proc/{number}/stat")
    return not state.exists() or state.read_text().rsplit(") ")[1][0] == "Z"


def test_no_process_outlives_a_service_that_was_killed() -> None:
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", PROGRAM, tests]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"ready\n"
        below = processes_below(service.pid)
        assert len(below) == 3  # two of multiprocessing's own, and a decoder
        service.kill()
    wait_until(lambda: all(map(gone, below)))


def test_the_process_that_forks_is_killed(running: Running) -> None:
    before = processes_below(os.getpid())
    server = int(Path(f"/proc/{before[-1]}/stat").read_text().rsplit(") ")[1].split()[1])
    os.kill(server, signal.SIGKILL)
    failed = 0
    for number in range(20):  # its decoder dies with it, in the midst of one of them
        try:
            assert running.answer(encoded(number))[0].probabilities is not None
        except ServiceError:
            failed += 1
    assert failed <= 1
    assert len(processes_below(os.getpid())) == len(before)
