"""Processes side by side, on this machine or on a Ray cluster, for pieces of work.

On this machine a pool of processes does one piece after the other. Each reads from a pipe that
nobody writes to: its end says that the process that started it has died, or wants an end, and a
piece that is being done is interrupted, as by a signal, and may save its state.

On a cluster a piece is a task. Ray decides where and when there is room for it, and starts it again
if its process or its node dies: work that keeps its state on the disk goes on from there.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from functools import lru_cache
from multiprocessing.connection import Connection
from multiprocessing.util import _run_finalizers  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import torch

from vitlab.errors import DiskError, OptionError, RunError, UserError, read_by_command
from vitlab.evaluation.on_ray import TRIES, cluster, room
from vitlab.files import remove_unfinished
from vitlab.machine.processes import is_stopped
from vitlab.progress import say

POLL = 0.05  # seconds
LOOK = 2.0  # seconds of work, after which its processes are looked at
ROOM = 60.0  # seconds of work on a cluster, after which it is asked whether it has nodes still
LEAVE = 300.0  # seconds that interrupted work has to save its state
STOPS = (signal.SIGINT, signal.SIGTERM)
WORKING = threading.Event()  # in a process of a pool: whether there is something to interrupt

T = TypeVar("T")


class SideBySide(Generic[T]):
    """Does several pieces of work at the same time, each in a process of its own.

    Args:
        function: does a piece of work, given its arguments; it, these and its result are pickled
        jobs: pieces at the same time
        threads: of each process, which starts when it is first needed
        again: what to do after a process died
    """

    def __init__(
        self, function: Callable[..., T], jobs: int, threads: int, again: str = "repeat the command"
    ) -> None:
        self._function, self._again = function, again
        self._busy: dict[Future[T], str] = {}
        self._stopped: set[int] = set()
        theirs, self._ours = multiprocessing.Pipe(duplex=False)
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(jobs, spawn, _ready, (theirs, threads))

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """End the processes; what is being done is interrupted, and may save its state before."""
        if kind is not None:
            self._ours.close()
        self._pool.shutdown(cancel_futures=True)
        self._ours.close()

    def begin(self, name: str, *given: Any) -> None:
        """Begin a piece of work; until a process is ready, it puts signals off."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            self._busy[self._pool.submit(_work, self._function, *given)] = name
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def finished(self) -> tuple[str, T]:
        """Wait until a piece of work is done; return its name and its result.

        Raises:
            RunError: a process died.
            UserError: as the work itself.
            KeyboardInterrupt: it was interrupted.
        """
        ended = wait(self._busy, LOOK, return_when=FIRST_COMPLETED).done
        while not ended:  # a pool says itself when a process of it has died
            self._name_stopped()
            ended = wait(self._busy, LOOK, return_when=FIRST_COMPLETED).done
        done = ended.pop()
        try:
            return self._busy.pop(done), done.result()
        except BrokenProcessPool:
            raise RunError(
                f"a process died (out of memory, if no line above says why): {self._again}, with "
                "fewer at the same time if one dies again"
            ) from None

    def _name_stopped(self) -> None:
        """Say once of each process that it is stopped, and that it is waited for."""
        for number in {*(self._pool._processes or ())} - self._stopped:
            if is_stopped(number):
                self._stopped.add(number)
                say(f"process {number} is stopped: kill -CONT {number} lets it go on")


def _ready(theirs: Connection, threads: int) -> None:
    """Make a process ready to work until its pipe ends."""
    os.setpgrp()  # a terminal's Ctrl-C reaches the first process, which passes it on
    torch.set_num_threads(threads)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)  # that came before it was ready, for all processes
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    for number in STOPS:
        signal.signal(number, signal.default_int_handler)
    threading.Thread(target=_follow, args=(theirs,), daemon=True).start()


def _follow(theirs: Connection) -> None:
    """End this process once the pipe has ended; before, what it is doing is interrupted."""
    theirs.poll(None)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the first process says it, if it is there
    until = time.monotonic() + LEAVE
    is_interrupted = False
    while WORKING.is_set() and time.monotonic() < until:
        if not is_interrupted:  # also work that has begun since the pipe ended
            os.kill(os.getpid(), signal.SIGINT)
            is_interrupted = True
        time.sleep(POLL)
    remove_unfinished()
    _run_finalizers(0)  # semaphores, which their tracker would warn of
    os._exit(0)


@read_by_command()
def _work(function: Callable[..., T], *given: Any) -> T:
    """Do a piece of work; who began it says what is wrong in the words of who reads it."""
    WORKING.set()
    try:
        return function(*given)
    finally:
        WORKING.clear()


class RayTasks(Generic[T]):
    """Does pieces of work as tasks of a Ray cluster, as `SideBySide` does in its processes.

    Args:
        function: does a piece of work, given its arguments; it, these and its result are pickled
        device: that it computes on
        folder: that it writes to, which all nodes must see
        again: what to do after a task died too often
    """

    def __init__(
        self, function: Callable[..., T], device: str, folder: Path, again: str = "repeat it"
    ) -> None:
        self._function, self._device, self._folder = function, device, folder
        self._again, self._stack = again, ExitStack()
        self._busy: dict[Any, str] = {}

    def __enter__(self) -> Self:
        """Connect to the cluster, or start one."""
        self._ray = self._stack.enter_context(cluster())
        _, each = room(self._ray, self._device)
        self._task = self._ray.remote(max_retries=TRIES - 1, **each)(_do)
        threads = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else 0
        try:
            self._sent = self._ray.put((self._function, Path.cwd(), self._folder, threads))
        except TypeError as error:
            self._stack.close()
            raise OptionError(
                f"on=ray needs functions that can be pickled ({error}): define them in a module"
            ) from None
        return self

    def __exit__(self, *error: object) -> None:
        """Interrupt what is being done, which may save its state before; leave the cluster."""
        with self._stack:
            for task in self._busy:
                self._ray.cancel(task)
            if self._busy:
                self._ray.wait([*self._busy], num_returns=len(self._busy), timeout=LEAVE)

    def begin(self, name: str, *given: Any) -> None:
        """Begin a piece of work, as soon as there is room."""
        self._busy[self._task.remote([self._sent], *given)] = name

    def finished(self) -> tuple[str, T]:
        """Wait until a piece of work is done; return its name and its result.

        Raises:
            RunError: its process died, each time that it was tried, or no node is left.
            UserError: as the work itself.
        """
        from ray.exceptions import RayError, RayTaskError

        ended, _ = self._ray.wait([*self._busy], timeout=ROOM)
        while not ended:
            if not room(self._ray, self._device)[0]:
                raise RunError(f"no node of the Ray cluster has room any more: {self._again}")
            ended, _ = self._ray.wait([*self._busy], timeout=ROOM)
        task = ended[0]
        name = self._busy.pop(task)
        try:
            result: T | UserError = self._ray.get(task)
        except RayTaskError:
            raise  # a bug of the work
        except RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise RunError(f"Ray gave up {name} ({reason}): {self._again}") from error
        if isinstance(result, UserError):
            raise result
        return name, result


@read_by_command()
def _do(sent: list[Any], *given: Any) -> Any:
    """Do a piece of work in a process of Ray; an error of the user is a result."""
    import ray

    function, home, folder, threads = _received(sent[0])
    with suppress(OSError):
        os.chdir(home)  # names of files may be relative
    own = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
    torch.set_num_threads(threads or max(1, int(own)))
    try:
        if not Path(folder).is_dir():
            raise DiskError(
                f"node {ray.util.get_node_ip_address()} cannot see {folder}: choose a folder on "
                "storage that all nodes share"
            )
        return function(*given)
    except UserError as error:
        return error


@lru_cache(maxsize=1)
def _received(sent: Any) -> Any:
    """Return what was sent to all tasks: the data that they have in common is opened once."""
    import ray

    return ray.get(sent)
