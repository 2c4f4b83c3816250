"""Processes side by side, on this machine or on a Ray cluster, for pieces of work.

A process of this machine does one piece after the other. While it waits for work it reads from a
pipe of its own: it may be ended at any moment, and ends by itself with the process that started it.
While it works it has its own handlers for signals, as training does, whose state is saved.

On a cluster a piece is a task. Ray decides where and when there is room for it, and starts it again
if its process or its node dies: work that keeps its state on the disk goes on from there.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import torch

from vitlab.errors import DiskError, OptionError, RunError, UserError
from vitlab.evaluation.on_ray import TRIES, cluster, room

STOPS = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


class SideBySide(Generic[T]):
    """Does several pieces of work at the same time, each in a process of its own.

    Args:
        function: does a piece of work, given its arguments; it, these and its result are pickled
        threads: of each process, which starts when it is first needed
        again: what to do after a process died
    """

    def __init__(
        self, function: Callable[..., T], threads: int, again: str = "repeat the command"
    ) -> None:
        self._function, self._threads, self._again = function, threads, again
        self._idle: list[Connection] = []
        self._busy: dict[Connection, str] = {}
        self._processes: dict[Connection, Any] = {}

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the processes; what is being done is interrupted, and may save its state before."""
        for pipe, process in self._processes.items():
            if pipe in self._busy:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
            pipe.close()
        for process in self._processes.values():
            process.join()

    def begin(self, name: str, *given: Any) -> None:
        """Begin a piece of work."""
        pipe = self._idle.pop() if self._idle else self._started()
        self._busy[pipe] = name
        pipe.send(given)

    def finished(self) -> tuple[str, T]:
        """Wait until a piece of work is done; return its name and its result.

        Raises:
            RunError: its process died.
            UserError: as the work itself.
            KeyboardInterrupt: it was interrupted.
        """
        pipe = wait(list(self._busy))[0]
        assert isinstance(pipe, Connection)
        name = self._busy.pop(pipe)
        try:
            result: T | BaseException = pipe.recv()
        except (EOFError, ConnectionError):
            raise RunError(
                f"a process died during {name} (out of memory?): {self._again}, with fewer at the "
                "same time if it dies again"
            ) from None
        self._idle.append(pipe)
        if isinstance(result, BaseException):
            raise result
        return name, result

    def _started(self) -> Connection:
        """Start a process; until it is ready, it puts signals off."""
        ours, theirs = multiprocessing.Pipe()
        given = theirs, self._function, self._threads
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=given)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._processes[ours] = process
        return ours


def _serve(pipe: Connection, function: Callable[..., Any], threads: int) -> None:
    """Work until the pipe is closed, or a signal comes."""
    os.setpgrp()  # a terminal's Ctrl-C reaches the first process, which passes it on
    torch.set_num_threads(threads)
    threading.Thread(target=_follow, daemon=True).start()
    try:
        for number in STOPS:
            signal.signal(number, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        while True:
            given = pipe.recv()
            try:
                result = function(*given)
            except UserError as error:
                result = error
            pipe.send(result)
    except (EOFError, ConnectionError):
        pass  # nobody is left to work for
    except KeyboardInterrupt as stop:
        with suppress(OSError):
            pipe.send(KeyboardInterrupt(*stop.args))


def _follow() -> None:
    """Interrupt this process once its parent is dead; it saves what it is doing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody is left to be told
        os.kill(os.getpid(), signal.SIGINT)


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
                self._ray.wait([*self._busy], num_returns=len(self._busy))

    def begin(self, name: str, *given: Any) -> None:
        """Begin a piece of work, as soon as there is room."""
        self._busy[self._task.remote([self._sent], *given)] = name

    def finished(self) -> tuple[str, T]:
        """Wait until a piece of work is done; return its name and its result.

        Raises:
            RunError: its process died, each time that it was tried.
            UserError: as the work itself.
        """
        from ray.exceptions import RayError, RayTaskError

        (task,), _ = self._ray.wait([*self._busy])
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
