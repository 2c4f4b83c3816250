"""The command line as a user meets it."""

import subprocess
import sys
from pathlib import Path

import pytest

import vitlab
from conftest import call, environment
from golden.rules import without_progress
from vitlab.command_table import Command
from vitlab.commands.recipes import Recipes
from vitlab.errors import UserError


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--version", "-V"):
        assert call(capsys, word) == (0, f"vitlab {vitlab.__version__}\n", "")


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "help") == call(capsys, "--help") == call(capsys)
    assert call(capsys, "help", "models") == call(capsys, "models", "--help")


def test_a_closed_pipe_is_no_error() -> None:
    words = f"{sys.executable} -m vitlab models | head -n 1"
    done = subprocess.run(
        words, shell=True, capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 0
    assert without_progress(done.stderr) == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_has_no_room_is_one_line() -> None:
    words = [sys.executable, "-m", "vitlab", "models"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment()
        )
    assert (done.returncode, done.stderr) == (2, "vitlab models: no space left on device\n")


def test_an_interrupt_and_what_another_process_has_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = KeyboardInterrupt("stopped after step 7")
    error = UserError("refused")
    for raised, status, words in (
        (stop, 130, "vitlab recipes: stopped after step 7\n"),
        (KeyboardInterrupt(), 130, "vitlab recipes: interrupted\n"),
        (error, 2, "vitlab recipes: refused\n"),
    ):

        def run(options: object, raised: BaseException = raised) -> None:
            raise raised

        run.__annotations__ = {"options": Recipes}
        monkeypatch.setattr("vitlab.commands.recipes.COMMAND", Command(run, is_light=True))
        assert call(capsys, "recipes") == (status, "", words)
        raised.quiet = True  # type: ignore[attr-defined]
        assert call(capsys, "recipes") == (status, "", "")


def test_an_empty_result_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(options: Recipes) -> dict[str, object]:
        return {}

    monkeypatch.setattr("vitlab.commands.recipes.COMMAND", Command(run, is_light=True))
    assert call(capsys, "recipes", "--json") == (0, "", "")
