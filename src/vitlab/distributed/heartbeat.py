"""Heartbeat of a process that works alone, while the other ones wait for it.

A collective call ends with an error after `--timeout` seconds, which tells a process that hangs
from one that is late. Reading data, searching it for leaks and computing intervals may take longer.
So a thread takes part in a small all-reduce every few seconds for as long as its process works, and
all processes know from it whether anyone still does. If a process dies, or is stopped, its beats
stay away, and the others end as in any other collective call.
"""

import threading

import torch
import torch.distributed as dist

LONGEST = 5.0  # seconds between two beats
SHARE = 0.25  # of the time that others wait for a beat
LEAVING = 2.0  # seconds that an error waits, beside those to a beat, until the others know of it
LOOK = 0.2  # seconds between two looks for signals


def pulse_of(timeout: float) -> float:
    """Return the seconds between two beats, where others wait for `timeout` seconds."""
    return min(LONGEST, SHARE * timeout)


class LostContactError(RuntimeError):
    """Another process has left while this one was waiting for it, or working beside it."""


class Heartbeat:
    """Takes part in rounds of all processes from its making until none of them works any more.

    Meanwhile the process makes no other collective call.

    Args:
        pulse: seconds between two beats
    """

    beating = False  # whether one is at work in this process

    def __init__(self, pulse: float) -> None:
        self._pulse = pulse
        self._is_done = threading.Event()
        self._is_failed = self._is_left = self._has_any_failed = False
        self._error: BaseException | None = None
        Heartbeat.beating = True
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        try:
            while True:
                is_done = self._is_done.wait(self._pulse)
                said = [not is_done, is_done and self._is_failed, is_done and self._is_left]
                flags = torch.tensor(said, dtype=torch.int32)
                dist.all_reduce(flags, dist.ReduceOp.MAX)
                works, self._has_any_failed, left = map(bool, flags.tolist())
                if left:
                    raise LostContactError("a process has ended")
                if not works:
                    return
        except BaseException as error:  # raised where the process waits
            self._error = error

    def finish(self, failed: bool) -> bool:
        """Wait until every process has done its work; return whether any of them has failed.

        Args:
            failed: whether this one has

        Raises:
            RuntimeError: a process has ended, or its beats stay away.
        """
        self._is_failed = failed
        self._is_done.set()
        try:
            while self._thread.is_alive():
                self._thread.join(LOOK)
        except BaseException:
            self.leave()
            raise
        Heartbeat.beating = False
        if self._error is not None:
            raise self._error
        return self._has_any_failed

    def leave(self) -> None:
        """Tell the others that this process is about to end, and beat no more."""
        self._is_left = True
        self._is_done.set()
        self._thread.join(self._pulse + LEAVING)
        Heartbeat.beating = False
