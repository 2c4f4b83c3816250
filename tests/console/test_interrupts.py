"""Ctrl-C and SIGTERM at any moment: one line, status 130, nothing left behind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import steady
import vitlab
from conftest import call, environment, photo_folder
from steady import wait_until
from vitlab.cli import main
from vitlab.command_table import Command
from vitlab.commands.recipes import Recipes
from vitlab.console.interrupts import PATIENCE, Interrupts

TINY = ["--model", "ViT(width=16,depth=1,heads=2,mlp=32)/8"]


def start(words: list[str], folder: Path, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "vitlab", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(OMP_NUM_THREADS="1", **more),
    )


HELD = """
import sys, time
class Held:
    def find_spec(self, name, path=None, target=None):
        if name == "NAME":
            print("importing", file=sys.stderr, flush=True)
            time.sleep(300)
sys.meta_path.insert(0, Held())
"""


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "torch"), (signal.SIGTERM, "torch.nn.functional")]
)
def test_signals_while_pytorch_is_imported(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, number: signal.Signals, name: str
) -> None:
    """The first line comes before the import, in the middle of which the signal arrives."""
    held = tmp_path_factory.mktemp("held")
    (held / "sitecustomize.py").write_text(HELD.replace("NAME", name))
    paths = os.pathsep.join([str(held), environment()["PYTHONPATH"]])
    process = start(["train", "digits", *TINY, "--out", "run"], tmp_path, PYTHONPATH=paths)
    assert process.stderr
    first = process.stderr.readline()
    assert "importing\n" in process.stderr  # on a slow machine it has said what it does
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, ""), err
    assert first.endswith("on digits, recipe digits\n")
    assert err == "vitlab train: interrupted\n"
    assert not list(tmp_path.iterdir())


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter of its own, with a clock that it holds."""
    first = "import os, signal, sys, time\nfrom vitlab.console.interrupts import Interrupts\n"
    code = f"{first}now = [0.0]\n" + code.replace("Interrupts()", "Interrupts(lambda: now[0])")
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment())


KILL = "os.kill(os.getpid(), signal.SIGTERM)"


def test_before_the_work_a_signal_ends_the_process_and_after_it_changes_nothing() -> None:
    code = f"with Interrupts() as interrupts:\n    interrupts.prog = 'x'\n    {KILL}\nprint('no')"
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "x: interrupted\n")
    done = run(f"with Interrupts() as interrupts:\n    interrupts.started()\n{KILL}\nprint('end')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_while_it_works_a_signal_raises_and_cleaning_up_is_not_disturbed() -> None:
    body = f"""
with Interrupts() as interrupts:
    interrupts.started()
    try:
        {KILL}
    except KeyboardInterrupt:
        {KILL}  # at once: ignored
        print("clean", interrupts.asked, flush=True)
        now[0] += 1.2
        {KILL}  # later: no more patience
        print("no")
"""
    done = run(body)
    assert (done.returncode, done.stdout) == (130, "clean True\n")
    assert done.stderr == "vitlab: interrupted\n"


SCRATCH = """
import shutil
from pathlib import Path
from vitlab.files import staged_file, staged_folder, vanishing_folder
remove = shutil.rmtree
def rmtree(*given, **named):
    shutil.rmtree = remove
    KILL  # the work is done: the removal is interrupted
    remove(*given, **named)
with Interrupts() as interrupts:
    interrupts.started()
    try:
        with vanishing_folder("vitlab-x-", Path.cwd()) as place, staged_file(Path("a.txt")) as a, \\
                staged_folder(Path("b")) as b:
            (place / "deep").mkdir()
            for each in (place / "deep" / "file", a, b / "file"):
                each.write_text("x")
            BODY
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (KILL, set()),
        ("shutil.rmtree = rmtree", {"b"}),
        (f"try:\n                {KILL}\n            except KeyboardInterrupt:\n"
         f"                now[0] += 1.2\n                {KILL}", set()),
    ],
    ids=["in the block", "in the removal", "a second signal"],
)  # fmt: skip
def test_nothing_unfinished_is_left_whenever_the_signal_comes(
    body: str, left: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(SCRATCH.replace("BODY", body).replace("KILL", KILL))
    assert done.returncode == 130, done.stderr
    assert {each.name for each in tmp_path.iterdir()} == left


@pytest.mark.parametrize("ends", ["sys.exit(130)", f"now[0] += 1.2; {KILL}"])
def test_no_semaphore_is_left_to_be_warned_of(ends: str) -> None:
    """Those of processes side by side, which are started anew, have names."""
    body = f"""
import multiprocessing
with Interrupts() as interrupts:
    interrupts.started()
    lock = multiprocessing.get_context("spawn").Lock()
    try:
        {KILL}
    except KeyboardInterrupt:
        {ends}
"""
    done = run(body)
    assert done.returncode == 130
    assert "leaked" not in done.stderr, done.stderr


@pytest.mark.workers
@pytest.mark.parametrize("signals", [1, 2])
def test_runs_that_are_timed_side_by_side_leave_nothing(tmp_path: Path, signals: int) -> None:
    """Two processes are in the midst of them; they are not waited for after a second signal."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ["train", "digits", *TINY, "--seeds", "2", "--jobs", "2", "--dry-run"]
    words += ["--check-duplicates", "no"]
    process = start(words, tmp_path, TMPDIR=str(scratch))
    wait_until(lambda: process.poll() is not None or list(scratch.glob("vitlab-timing-*/*")))
    for number in range(signals):
        time.sleep(1.2 * PATIENCE * number)  # at once, it would be ignored
        process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "leaked" not in err
    assert "Traceback" not in err
    assert list(scratch.iterdir()) == []
    assert {each.name for each in tmp_path.iterdir()} == {"scratch"}


def test_where_python_ignores_exceptions_it_is_raised_again() -> None:
    body = f"""
class Odd:
    def __del__(self):
        {KILL}
with Interrupts() as interrupts:
    interrupts.started()
    try:
        Odd()
        time.sleep(300)
        print("ignored")
    except KeyboardInterrupt:
        print("raised")
    class Other:
        def __del__(self):
            raise ValueError("as ever")
    Other()
"""
    done = run(body)
    assert (done.returncode, done.stdout) == (0, "raised\n")
    assert "as ever" in done.stderr
    assert "KeyboardInterrupt" not in done.stderr


def test_what_runs_at_exit_does_not_change_the_status_of_an_interrupted_command() -> None:
    body = f"""
import atexit
atexit.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
with Interrupts() as interrupts:
    interrupts.started()
    try:
        {KILL}
    except KeyboardInterrupt:
        print("said")
        sys.exit(130)
"""
    done = run(body)
    assert (done.returncode, done.stdout) == (130, "said\n")


def test_what_an_interrupted_import_becomes_is_no_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(options: Recipes) -> None:
        raise ImportError("cannot load module more than once per process")

    monkeypatch.setattr("vitlab.commands.recipes.COMMAND", Command(run, is_light=True))
    interrupts = Interrupts()
    interrupts.asked = True
    with pytest.raises(SystemExit) as stop:
        main(["recipes"], interrupts)
    assert stop.value.code == 130
    assert capsys.readouterr().err == "vitlab recipes: interrupted\n"
    with pytest.raises(ImportError):
        call(capsys, "recipes")


COMMANDS = {
    "train": ["train", "photos", *TINY, "--epochs", "3", "--workers", "1", "--out", "run"],
    "evaluate": ["evaluate", "model", "photos", "--out", "rows.csv", "--workers", "1"],
    "predict": ["predict", "model", "photos", "--out", "rows.csv"],
    "prepare": ["prepare", "photos", "copy", "--format", "tar", "--workers", "1"],
    "embed": ["embed", "model", "photos", "--out", "features.parquet", "--workers", "1"],
}


@pytest.mark.campaign
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_random_moments(tmp_path: Path, command: str, number: signal.Signals) -> None:
    """VITLAB_MOMENTS sets how many, VITLAB_LATEST the latest in seconds.

    Python itself needs some 30 ms before the first line of ours: signals before that are its own.
    """
    count = int(os.environ.get("VITLAB_MOMENTS", "20"))
    latest = float(os.environ.get("VITLAB_LATEST", "6"))
    photo_folder(tmp_path / "photos", {"blue": 6, "green": 6, "red": 6}, 32, 32)
    vitlab.save(vitlab.create(TINY[1], 3, 32), tmp_path / "model")
    chance, slow, codes = random.Random(command), [], []
    for _ in range(count):
        process = start(COMMANDS[command], tmp_path)
        delay = chance.uniform(0.1, latest)
        time.sleep(delay)
        began = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=steady.PATIENCE)
        slow.append(time.monotonic() - began)
        codes.append(process.returncode)
        assert process.returncode in (0, 130), (delay, err)
        assert "Traceback" not in err, (delay, err)
        left = {each.name for each in tmp_path.iterdir()} - {"photos", "model"}
        allowed = {"run", "rows.csv", "copy", "features.parquet", ".features.parquet.parts"}
        assert left <= allowed, left
        subprocess.run(["rm", "-rf", *left], cwd=tmp_path, check=True)
    print(command, number.name, "interrupted", codes.count(130), "of", count,
          f"slowest answer {max(slow):.2f} s")  # fmt: skip
