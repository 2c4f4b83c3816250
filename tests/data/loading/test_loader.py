"""Worker processes of a loader: what they say when nobody listens anymore."""

import contextlib
import io
import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver

import pytest
from torch.utils.data import Dataset

from vitlab.data.loading.loader import in_order, loader
from vitlab.errors import DataError


class Hangs(Dataset[str]):
    """An item is what a worker prints when a receiver of its batches hangs up."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                raise self.error("gone")
            except self.error:
                sys.excepthook(*sys.exc_info())
        return said.getvalue()


@pytest.mark.parametrize("error", [EOFError, ConnectionResetError, BrokenPipeError])
def test_a_parent_that_hangs_up_is_no_error(error: type[Exception]) -> None:
    assert list(in_order(Hangs(error), range(1), 1)) == [""]


def test_any_other_error_is_printed() -> None:
    (said,) = in_order(Hangs(ZeroDivisionError), range(1), 1)
    assert said.endswith("ZeroDivisionError: gone\n")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.workers)]
)
def test_a_signal_to_all_processes_reaches_no_worker_before_it_is_ready(
    number: signal.Signals,
) -> None:
    """Such as a terminal's Ctrl-C, while a worker that was not forked still imports PyTorch."""
    loaded = iter(loader(Hangs(EOFError), range(1), 1))
    others = [each.pid for each in multiprocessing.active_children()]
    for pid in (*others, forkserver._forkserver._forkserver_pid):
        if pid is not None:
            os.kill(pid, number)
    assert next(loaded) == ""
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.workers
def test_data_that_no_worker_can_get_is_named_in_one_line() -> None:
    local = Hangs(EOFError)
    local.own = lambda: None  # type: ignore[attr-defined]
    if multiprocessing.get_start_method() == "fork":
        assert list(in_order(local, range(1), 1)) == [""]
        return
    with pytest.raises(DataError, match=r"cannot be sent to worker processes \(.*lambda"):
        list(in_order(local, range(1), 1))
