"""Errors for people: one line, whatever the names in a file are."""

import errno
import pickle
from pathlib import Path

import numpy as np
import pytest

import vitlab
from conftest import call
from vitlab.errors import (
    DataError,
    UserError,
    WeightsError,
    as_user_error,
    cut_long,
    one_line,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is: é, 語, 👍🏽, a b", "as it is: é, 語, 👍🏽, a b"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("a\u2028b\x1b[31m", r"a\u2028b\x1b[31m"),
        ("half \udc80", r"half \udc80"),
    ],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert str(DataError(text)) == shown
    assert str(pickle.loads(pickle.dumps(DataError(text)))) == shown
    assert shown.encode()


@pytest.mark.parametrize("command", ["serve", "finetune", "predict", "compare"])
def test_a_long_argument_is_not_repeated_whole(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One place cuts it for every command: what is wrong and what would work stay."""
    for text in ("x" * 5000, "x y " * 1250):
        code, out, err = call(capsys, command, text, text)
        assert (code, out) == (2, "")
        assert err.startswith(f"vitlab {command}: ")
        assert len(err) < 2200


def test_long_lines_lose_their_middle() -> None:
    assert cut_long("a  short\nline") == "a short line"
    found = cut_long(f"unknown model {'x' * 5000}: choose ViT-B/16")
    assert found.startswith("unknown model xxx")
    assert found.endswith("xxx: choose ViT-B/16")
    assert "..." in found
    assert 200 < len(found) < 400
    assert len(cut_long("word " * 5000)) < 2000


def test_what_the_system_refuses_and_a_person_can_mend() -> None:
    denied = as_user_error(PermissionError(errno.EACCES, "Permission denied", "runs/a"))
    full = as_user_error(OSError(errno.ENOSPC, "No space left on device"))
    homeless = as_user_error(RuntimeError("Could not determine home directory."))
    assert str(denied) == "runs/a: permission denied"
    assert str(full) == "no space left on device"
    assert "begins with ~" in str(homeless)
    homeless = as_user_error(FileNotFoundError(errno.ENOENT, "No usable temporary directory found"))
    assert str(homeless) == (
        "no folder for temporary files can be written: set TMPDIR to one that can"
    )
    for other in (OSError(errno.EBADF, "x"), RuntimeError("x"), KeyError(1)):
        assert as_user_error(other) is other


def test_a_hostile_name_of_a_tensor_stays_in_the_line(tmp_path: Path) -> None:
    file = tmp_path / "model.npz"
    np.savez(file, **{"\nvitlab: all is well\x1b[2J": np.zeros(3)})
    with pytest.raises(WeightsError) as caught:
        vitlab.load(file)
    assert str(caught.value).isprintable()
    assert isinstance(caught.value, UserError)
