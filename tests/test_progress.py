"""What people see while something runs: on terminals of any width, in logs, without color."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from vitlab import progress
from vitlab.progress import GAP, Meter, fitted, named_if_slow, terminal_width

PARTS = ["epoch 12.5/300", "loss 1.234", "accuracy 45.6%", "1,234 images/s"]


@pytest.mark.parametrize(("columns", "shown"), [(40, 0), (60, 1), (80, 2), (100, 3), (200, 4)])
def test_what_is_left_is_never_cut(columns: int, shown: int) -> None:
    head, left = "step 12,345/100,000", "3:25:10 left"
    parts, bar = fitted(head, PARTS, left, columns)
    assert parts == PARTS[:shown]
    line = GAP.join([head, *(["━" * bar] if bar else []), *parts, left])
    assert len(line) <= columns
    assert columns > 40 or not bar
    assert 0 <= bar <= progress.MOST


def test_the_bar_fills_what_the_parts_leave() -> None:
    assert fitted("step 1/9", ["a" * 20], "0:10 left", 79) == (["a" * 20], 36)
    assert fitted("step 1/9", [""], "0:10 left", 25) == ([], 0)
    assert fitted("step 1/9", [""], "0:10 left", 27) == ([], 6)


class Terminal:
    """The screen side of a pseudo-terminal."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8")

    def text(self) -> str:
        """Return all that was written, and close the program's side."""
        self.stream.close()
        parts = []
        with suppress(OSError):  # nothing more comes
            while part := os.read(self.master, 1 << 16):
                parts.append(part)
        return b"".join(parts).decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal of 60 columns."""
    for name in ("LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    made = Terminal()
    yield made
    made.close()


def run(steps: int = 40) -> None:
    with Meter(steps, 0, "step") as meter:
        for step in range(1, steps + 1):
            meter.show(step, GAP.join(PARTS))
        meter.say("a row")
        assert meter.live is not None
        meter.live.refresh()


def test_a_terminal_has_rows_above_a_live_bar(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    assert terminal_width() == 60
    run()
    text = terminal.text()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "a row" in plain
    last = [line for line in re.split(r"[\r\n]+", plain) if line.startswith("step")][-1]
    assert re.fullmatch(r"step 40/40  ━+  epoch 12.5/300  loss 1.234  0:00 left", last)
    assert "\x1b[32m" in text  # green


def test_no_color_means_none(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    monkeypatch.setenv("NO_COLOR", "1")
    run()
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", terminal.text())


def test_a_dumb_terminal_is_not_redrawn(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    monkeypatch.setenv("TERM", "dumb")
    assert terminal_width() is None
    assert Meter(3).live is None


def test_a_log_has_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with Meter(1200, 200, "step") as meter:
        for step in range(201, 231):
            now += 1.0
            meter.show(step, "epoch 3  loss 0.1")
            if step == 214:
                meter.say("row")  # a row counts as a line
    assert capsys.readouterr().err.splitlines() == [
        "step 210/1,200  epoch 3  loss 0.1  16:30 left",
        "row",
        "step 224/1,200  epoch 3  loss 0.1  16:16 left",
    ]
    with Meter(3, shown=False) as silent:
        now += 60
        silent.show(1, "")
        silent.say("row")
    assert capsys.readouterr().err == ""


def test_what_takes_long_is_named_and_what_is_quick_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said, told = threading.Event(), []
    monkeypatch.setattr(progress, "say", lambda text: (told.append(text), said.set()))
    with named_if_slow("reading"):
        pass
    assert not told
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    with named_if_slow("reading 12 files"):
        assert said.wait(10)
    with named_if_slow("reading", shown=False):
        pass
    assert told == ["reading 12 files …"]
