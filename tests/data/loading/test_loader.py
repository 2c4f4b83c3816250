"""Worker processes of a loader: what they say when nobody listens anymore."""

import contextlib
import io
import sys

import pytest
from torch.utils.data import DataLoader, Dataset

from vitlab.data.loading.loader import leave_signals_to_parent


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
    (said,) = DataLoader(Hangs(error), None, num_workers=1, worker_init_fn=leave_signals_to_parent)
    assert said == ""


def test_any_other_error_is_printed() -> None:
    loader = DataLoader(
        Hangs(ZeroDivisionError), None, num_workers=1, worker_init_fn=leave_signals_to_parent
    )
    (said,) = loader
    assert said.endswith("ZeroDivisionError: gone\n")
