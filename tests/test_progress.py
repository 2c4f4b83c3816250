"""What people see while something runs: on terminals of any width, in logs, without color."""

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from steady import wait_until
from vitlab import progress
from vitlab.progress import (
    GAP,
    WATCH,
    Meter,
    Work,
    choose_due,
    fitted,
    named_if_slow,
    say,
    terminal_width,
)
from vitlab.public_calls import public

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


class Clock:
    """A clock that the test holds.

    Attributes:
        now: seconds
        step: seconds that pass with each look at it
        looks: how often the watch has looked at it
    """

    def __init__(self) -> None:
        self.now, self.step, self.looks = 0.0, 0.0, 0

    def __call__(self) -> float:
        self.looks += threading.current_thread().name == "progress"
        self.now += self.step
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    """The clock of the watch."""
    before = WATCH.clock
    WATCH.clock = Clock()
    yield WATCH.clock
    WATCH.clock = before


def run(steps: int = 40) -> None:
    with Meter(steps, 0, "step") as meter:
        for step in range(1, steps + 1):
            meter.show(step, GAP.join(PARTS))
        meter.say("a row")
        assert WATCH.live is not None
        WATCH.live.refresh()


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
    with Meter(3):
        assert WATCH.live is None


def wait_for(text: str, heard: Callable[[], str]) -> str:
    """Wait until a text was printed; return all that was."""
    so_far = [""]

    def is_there() -> bool:
        so_far.append(so_far[-1] + heard())
        return text in so_far[-1]

    wait_until(is_there)
    return so_far[-1]


def lines_of(works: list[Work], seconds: int, row: int = 0) -> list[tuple[int, Work]]:
    """Look once a second, from the beginning of some work on; something else is said at `row`."""
    start, last, lines = works[0].start, works[0].start, list[tuple[int, Work]]()
    for second in range(1, seconds + 1):
        work = choose_due(works, start + second, last)
        if work or second == row:
            last = start + second
        if work:
            work.is_named = True
            lines.append((second, work))
    return lines


def test_a_log_has_a_line_within_five_seconds_and_every_ten_from_then_on() -> None:
    block, meter, whole = Work("reading"), Meter(9, title="step"), Work("train", by_itself=False)
    assert lines_of([block], 30) == [(2, block), (12, block), (22, block)]
    assert lines_of([meter], 30) == [(4, meter), (14, meter), (24, meter)]
    assert lines_of([whole], 30) == [(4, whole), (14, whole), (24, whole)]
    again = Meter(9, title="step")
    assert lines_of([again], 30, row=10) == [(4, again), (20, again), (30, again)]
    assert choose_due([], 100, 0) is None


def test_the_innermost_piece_of_work_is_named_and_the_whole_where_there_is_none() -> None:
    whole, inner = Work("train", by_itself=False), Work("load", by_itself=False)
    outer, meter = Work("testing"), Meter(9)
    for works, named in (
        ([whole, inner], inner),
        ([whole, outer, inner], outer),
        ([whole, outer, meter, inner], meter),
    ):
        assert choose_due(works, whole.start + 6, whole.start) is named


def test_a_meter_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter(1200, 200, "step") as meter:
        assert meter.line() == "step 200/1,200  0:00 so far"
        meter.show(210, "epoch 3  loss 0.1")
        assert re.fullmatch(r"step 210/1,200  epoch 3  loss 0.1  \d+:\d\d left", meter.line())
        meter.images(1300, 1400)
        assert meter.line().startswith("step 1,300/1,400  images  ")
        meter.say("row")
    assert capsys.readouterr().err == "row\n"
    with Meter(3, shown=False) as silent:
        silent.show(1, "")
        silent.say("row")
    assert capsys.readouterr().err == ""
    assert Meter(0, title="evaluating").line() == "evaluating …  0:00 so far"


def test_what_takes_long_is_named_while_the_program_is_busy_and_what_is_quick_is_not(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    def heard() -> str:
        return capsys.readouterr().err

    with named_if_slow("reading"):
        clock.now += 0.99 * progress.SILENCE
        seen_again(clock)
    clock.now += 1.0
    with named_if_slow("reading 12 files"), named_if_slow("reading", shown=False):
        clock.now += progress.SILENCE
        said = wait_for("\n", heard)
    assert said == "reading 12 files …\n"
    with Meter(7, title="looking"):
        clock.now += progress.FIRST
        assert wait_for("\n", heard) == "looking 0/7  0:04 so far\n"
    assert not WATCH.works


def seen_again(clock: Clock, times: int = 3) -> None:
    """Wait until the watch has looked so often."""
    goal = clock.looks + times
    wait_until(lambda: clock.looks >= goal)


def test_a_line_that_another_handler_writes_is_not_said_again_at_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a service, which writes lines of its own: each look would say it anew."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    lines: list[str] = []
    monkeypatch.setattr(progress.LOG, "handlers", [Kept()])
    with named_if_slow("reading"):
        for number, seconds in enumerate((progress.SILENCE, progress.PAUSE), 1):
            clock.now += seconds
            wait_until(lambda number=number: len(lines) == number)
            seen_again(clock)
    assert lines == ["reading …", "reading … 0:12"]


@public()
def slow(clock: Clock, heard: Callable[[], str], *, quiet: bool = False) -> str:
    """Take as long as it takes to be named."""
    if not quiet:
        clock.now += progress.FIRST
        return wait_for("\n", heard)
    with named_if_slow("reading"), Meter(9):
        assert not WATCH.works  # nobody looks
    return heard()


def test_a_call_from_python_is_named_unless_it_is_quiet(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    def heard() -> str:
        return capsys.readouterr().err

    assert slow(clock, heard) == "slow …\n"
    assert slow(clock, heard, quiet=True) == ""


def test_one_process_of_torchrun_names_what_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with named_if_slow("train", by_itself=False):
        assert not WATCH.works
    monkeypatch.setenv("RANK", "0")
    with named_if_slow("train", by_itself=False):
        assert len(WATCH.works) == 1


def test_on_a_terminal_what_takes_long_moves(
    terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    clock.step = progress.LOOK
    with named_if_slow("reading 12 files"):
        text = ""
        while len(set(re.findall(r"reading 12 files  \S", text))) < 3:
            text += os.read(terminal.master, 1 << 16).decode(errors="replace")
        say("a row")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.text())
    assert "a row" in plain
    assert WATCH.live is None


def test_a_forked_process_names_what_it_does_itself() -> None:
    def child() -> None:
        assert not WATCH.works
        with named_if_slow("working"):
            assert [each.what for each in WATCH.works] == ["working"]

    with named_if_slow("reading"):
        pid = os.fork()
        if not pid:
            try:
                child()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert [each.what for each in WATCH.works] == ["reading"]


def test_a_script_that_its_processes_run_again_is_told_of_the_guard() -> None:
    @public()
    def train(*, host: object = None) -> str:
        return "trained"

    script = compile("found = train()", "script.py", "exec")
    alone = {"__name__": "__main__", "train": train}
    exec(script, alone)
    assert alone["found"] == "trained"
    with pytest.raises(SystemExit, match="if __name__ =="):
        exec(script, {"__name__": "__mp_main__", "train": train})
    called = {"__name__": "__mp_main__", "train": train}
    exec("def work():\n    return train()", called)  # by a process, of a function of the script
    assert called["work"]() == "trained"
