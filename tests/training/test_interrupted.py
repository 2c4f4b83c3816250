"""Runs that are stopped, killed, damaged or moved: they go on to the same bits, or say why not."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError

import vitlab
from conftest import (
    BRIEF,
    LIGHT,
    SHOWN,
    call,
    photo_folder,
)
from forked import Forked
from steady import wait_until
from steps import asked_to_stop, each_step
from training.kept import EACH, PLAIN, journal, killed, resumed, stopped, weights
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.handover import WorkerDiedError
from vitlab.data.loading.loader import deaths_explained, deaths_reported_late, started
from vitlab.errors import DataError, OptionError, RunError
from vitlab.recipes.recipe import Host
from vitlab.training import checkpoints
from vitlab.training.observer import Observer
from vitlab.training.state import RunState
from vitlab.training.step import Trainer
from vitlab.training.stop import Interrupted, Stop

RECIPE = vitlab.recipe("digits", **PLAIN)
Act = Callable[..., Any]


def outcome(run: vitlab.Run | Path) -> tuple[str, list[dict[str, Any]]]:
    """The model, and what was found, whatever is known of duplicates."""
    return weights(run), [{**line, "notes": 0} for line in journal(run)]


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after five of six steps, with two checkpoints."""
    folder = tmp_path_factory.mktemp("cut") / "run"
    with asked_to_stop(5), pytest.raises(Interrupted, match="stopped after step 5 of 6"):
        vitlab.train(RECIPE, folder, host=Host(checkpoint_every=0, effort=BRIEF))
    return folder


@pytest.fixture
def cut(halfway: Path, tmp_path: Path) -> Path:
    """A copy of that one."""
    return shutil.copytree(halfway, tmp_path / "run")


def goes_on(folder: Path, whole: vitlab.Run) -> None:
    """The run goes on to the same, and leaves no drafts."""
    vitlab.train(RECIPE, folder, resume=True, host=LIGHT)
    assert outcome(folder) == outcome(whole)
    assert {each.name for each in folder.rglob(".*")} == {".lock"}


def then(patch: pytest.MonkeyPatch, name: str, act: Act, *, turn: int = 1) -> None:
    """Let something happen when a function is called for the nth time."""
    module, _, last = name.rpartition(".")
    place, _, kind = (module, "", "") if module.islower() else module.rpartition(".")
    owner: Any = __import__(place, fromlist=["_"])
    owner = getattr(owner, kind) if kind else owner
    real, calls = getattr(owner, last), []

    def wrapped(*args: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == turn:
            act()
        return real(*args, **named)

    patch.setattr(owner, last, wrapped)


# Stopped, killed, and on other workers

WAYS: dict[
    str, tuple[dict[str, Any], tuple[int, ...]]
] = {  # options, and steps to be killed before
    "bf16": ({"precision": "bf16", "rho": 0.05}, (5,)),
    "bf16-pure, patience": (
        {"precision": "bf16-pure", "patience": 2, "lr": 0.05, "steps": 12, "test_every": 0.5},
        (2, 8),  # before the first look, and after some
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_killed_and_resumed_the_bits_are_the_same(way: str, tmp_path: Path) -> None:
    how, stops = WAYS[way]
    recipe = vitlab.recipe("digits", **PLAIN | how)
    undisturbed = vitlab.train(recipe, tmp_path / "whole", host=EACH)
    for at in stops:
        killed(at, recipe, tmp_path / "run")
    again = resumed(recipe, tmp_path / "run")
    assert outcome(again) == outcome(undisturbed)
    found, _ = checkpoints.load(again.folder / "checkpoints")
    assert found is not None
    assert {str(t.dtype) for n, t in found.tensors.items() if "model." in n} == {"torch.float32"}


def test_stopped_and_resumed_anywhere_the_bits_are_the_same(
    whole: vitlab.Run, tmp_path: Path
) -> None:
    for steps, workers in ((1, 0), (2, 2), (1, 1)):
        stopped(steps, RECIPE, tmp_path / "run", Host(workers=workers, effort=BRIEF))
    goes_on(tmp_path / "run", whole)


def command(folder: Path, *more: str) -> list[str]:
    words = ["train", "digits", "--out", str(folder), "--resume"]
    plain = (f"--{key.replace('_', '-')}={value}" for key, value in PLAIN.items())
    return [*words, *plain, *more]


CAMPAIGN = int(os.environ.get("VITLAB_CAMPAIGN", "30"))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(1, CAMPAIGN))]
)
def test_at_random_moments_by_any_signal_too(
    number: int, whole: vitlab.Run, tmp_path: Path
) -> None:
    """`VITLAB_CAMPAIGN=30 pytest -m campaign -k random_moments`, 30 being the runs."""
    generator, folder, codes = np.random.default_rng((0, number)), tmp_path / "run", list[int]()
    file, every = folder / "metrics.jsonl", str(generator.choice(["0", "0.05", "1000"]))
    while not codes or codes[-1]:
        words = ["--checkpoint-every", every, "--workers", str(generator.integers(0, 3))]
        size = file.stat().st_size if file.exists() else 0
        process = Forked(command(folder, *words))
        while process.poll() is None and len(codes) < 2:
            time.sleep(0.005)
            if file.exists() and file.stat().st_size != size:  # it is taking steps
                time.sleep(float(generator.uniform(0, 0.05)))
                process.send_signal(int(generator.choice(SIGNALS)))
                break
        codes.append(process.wait())
        # a worker whose parent is killed while it hands a batch over says so in its own way
        assert "Traceback" not in process.err or codes[-1] < 0, process.err
        assert codes[-1] in (0, 130, -signal.SIGKILL), process.err
        if codes[-1] == 130:
            last = process.err.splitlines()[-1]
            assert last.startswith("vitlab train: stopped after "), process.err
            assert "--resume" in last
            assert {each.name for each in folder.rglob(".*")} <= {".lock"}
    assert outcome(folder) == outcome(whole)


MOMENTS = (
    ("training.run.find_leaks", "before the first step"),
    ("runs.run_folder.RunFolder.start", "after step 0: pass --resume"),
    ("training.observer.Observer.measure", "after step 4 of 6; pass"),
    ("training.ending.save", "after the last step: pass --resume"),
    ("training.observer.Observer.known", "after the last step: pass --resume"),
    ("report.gather.write_report", ""),  # the run finishes
)


def test_signals_at_any_moment_stop_the_run_and_it_goes_on_to_the_same(
    whole: vitlab.Run, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for name, said in MOMENTS:
        with pytest.MonkeyPatch.context() as patch:
            then(patch, f"vitlab.{name}", lambda: signal.raise_signal(signal.SIGINT))
            if said:
                with pytest.raises(Interrupted, match=said):
                    vitlab.train(RECIPE, folder, resume=True, host=LIGHT)
            else:
                vitlab.train(RECIPE, folder, resume=True, host=Host(effort=SHOWN))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert folder.exists() == ("before the first step" not in said)
    goes_on(folder, whole)


def test_what_a_library_makes_of_a_signal_is_an_interruption() -> None:
    with pytest.raises(Interrupted, match="before the first step"), Stop() as stop, stop.at_once():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("cannot load module more than once per process") from None
    with pytest.raises(Interrupted, match="before the first step"), Stop() as stop:
        try:
            with stop.at_once():
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pass  # as some libraries do
        with stop.at_once():
            raise AssertionError("asked before it began")


class Late:
    """Something that is interrupted where Python ignores exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_python_ignores_is_heard_later(capsys: pytest.CaptureFixture[str]) -> None:
    hook = sys.unraisablehook
    with pytest.raises(Interrupted), Stop() as stop:
        with stop.at_once():
            late = Late()
            del late
        assert stop.asked
        stop.check()
    assert sys.unraisablehook is hook
    assert capsys.readouterr() == ("", "")


def test_a_second_signal_stops_at_once_unless_processes_must_agree() -> None:
    with pytest.raises(Interrupted), Stop():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("not stopped")
    with Stop(patient=True) as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked


# Workers that die


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_killed_worker_ends_the_run_saved_and_it_goes_on_to_the_same_bits(
    tmp_path: Path,
) -> None:
    recipe = RECIPE.changed(steps=12)  # so that not all batches are made before it dies
    words = ["--workers=2", "--checkpoint-every=1000", "--steps=12"]
    first, dead = tmp_path / "first", tmp_path / "dead"

    def halt(trainer: Trainer, state: RunState, batch: Batch) -> None:
        first.touch()
        wait_until(dead.exists)

    process = Forked(command(tmp_path / "run", *words), each_step(after=halt).__enter__)
    wait_until(lambda: first.exists() or process.poll() is not None)
    file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
    dead.touch()
    assert process.wait() == 2, process.err
    assert "Traceback" not in process.err
    last = process.err.splitlines()[-1]
    assert last.startswith("vitlab train: a data-loading worker died")
    found, _ = checkpoints.load(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert f"saved after step {found.state['step']:,}: pass --resume" in last
    assert outcome(resumed(recipe, tmp_path / "run")) == outcome(
        vitlab.train(recipe, tmp_path / "whole", host=LIGHT)
    )


def test_a_worker_that_dies_in_an_evaluation_saves_the_run(
    whole: vitlab.Run, tmp_path: Path
) -> None:
    def die() -> None:
        raise WorkerDiedError("a data-loading worker died")

    with pytest.MonkeyPatch.context() as patch:
        then(patch, "vitlab.training.observer.Observer.measure", die)
        with pytest.raises(
            RunError, match="died; saved after step 4: pass resume=True to continue"
        ):
            vitlab.train(RECIPE, tmp_path / "run", host=LIGHT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Observer, "known", lambda self, source: None)
        then(patch, "vitlab.training.observer.Observer.predict", die, turn=3)
        with pytest.raises(RunError, match="died; pass resume=True to finish the run"):
            vitlab.train(RECIPE, tmp_path / "run", resume=True, host=LIGHT)
    goes_on(tmp_path / "run", whole)


def test_a_worker_that_dies_as_the_loader_starts_is_noticed_there() -> None:
    before = signal.getsignal(signal.SIGCHLD)

    class Loader:
        def __iter__(self) -> Any:
            signal.signal(signal.SIGCHLD, print)  # as PyTorch's does
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    with pytest.raises(WorkerDiedError), deaths_reported_late():
        started(Loader())
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    with deaths_reported_late():
        assert next(started([1])) == 1
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    signal.signal(signal.SIGCHLD, before)


def test_a_death_is_told_from_what_a_living_worker_says() -> None:
    for error, dead in (
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), True),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (FileNotFoundError(2, "No such file or directory"), True),  # a socket's, which has no name
        (EOFError(), True),
        (FileNotFoundError(2, "No such file or directory", "photos/red/001.png"), False),
        (RuntimeError("Caught RuntimeError in DataLoader worker process 0."), False),
        (OSError(28, "No space left on device"), False),
    ):
        with pytest.raises(WorkerDiedError if dead else type(error)), deaths_explained():
            raise error


# Disks and the journal


def test_a_full_disk_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    then(monkeypatch, "vitlab.training.checkpoints.save_file", full, turn=4)
    with pytest.raises(ValueError, match=r"cannot write .*no space left on device"):
        vitlab.train(RECIPE, tmp_path / "run", host=EACH)
    found, remarks = checkpoints.load(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert (found.state["step"], remarks) == (3, [])


def garbled(content: bytes) -> dict[str, bytes | None]:
    """What a disk, a power cut or a person may leave of a journal."""
    return {
        "missing": None,
        "flipped": content[:100] + bytes([content[100] ^ 0x80]) + content[101:],
        "not text": content + b"\xff\xfe\n",
    }


@pytest.mark.parametrize("damage", [*garbled(b" " * 999), "no copies"])
def test_whatever_becomes_of_the_journal_it_is_what_it_was(
    damage: str, cut: Path, whole: vitlab.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cut / "metrics.jsonl"
    left = garbled(file.read_bytes()).get(damage, b"")
    if damage == "no copies":  # in its checkpoints
        for place in (cut / "checkpoints").iterdir():
            (place / file.name).unlink()
            names = (checkpoints.TENSORS, checkpoints.STATE)
            entries = {name: checkpoints.entry(place / name) for name in names}
            checkpoints.write_manifest(place, int(place.name[5:]), entries)
    elif left is None:
        file.unlink()
    else:
        file.write_bytes(left)
    goes_on(cut, whole)
    repaired = damage in ("missing", "flipped")
    assert capsys.readouterr().err.count(": restored from the checkpoint\n") == repaired


def test_a_finished_run_whose_journal_is_lost_is_finished_again(
    whole: vitlab.Run, tmp_path: Path
) -> None:
    run = shutil.copytree(whole.folder, tmp_path / "run")
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace('"result"', '"resulu"'))
    goes_on(run, whole)


# Two starts on one folder, and folders that vanish


def test_of_two_starts_the_later_one_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = tmp_path / "run", list[bytes]()

    def other() -> None:
        if seen:
            return
        seen.append(b"")
        killed(2, RECIPE, folder)
        seen.append((folder / "run.toml").read_bytes())

    then(monkeypatch, "vitlab.training.run.find_leaks", other)  # after the folder was looked at
    with pytest.raises(RunError, match=r"another process has trained in .* meanwhile"):
        vitlab.train(RECIPE.changed(seed=7), folder, resume=True, host=LIGHT)
    assert (folder / "run.toml").read_bytes() == seen[1]


def test_of_two_continuations_the_later_one_adds_nothing(cut: Path, whole: vitlab.Run) -> None:
    with pytest.MonkeyPatch.context() as patch:

        def other() -> None:
            patch.undo()
            vitlab.train(RECIPE, cut, resume=True, host=LIGHT)

        then(patch, "vitlab.training.run.first_state", other)
        with pytest.raises(RunError, match=r"another process has trained in .* meanwhile"):
            vitlab.train(RECIPE, cut, resume=True, host=LIGHT)
    assert outcome(cut) == outcome(whole)


def replace_by_another(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    folder.rename(folder.with_name("old"))
    folder.with_name("copy").rename(folder)


LOST: dict[str, tuple[Act, str, bool]] = {  # and whether that happens during the last test
    "replaced": (replace_by_another, "run was removed or replaced during the run", True),
    "run.toml": (lambda folder: (folder / "run.toml").unlink(), "run.toml was removed", True),
    "checkpoints": (lambda f: shutil.rmtree(f / "checkpoints"), "checkpoints was removed", False),
}


@pytest.mark.parametrize("what", LOST)
def test_a_folder_that_vanishes_ends_the_run_and_stays_away(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (lose, said, late) = tmp_path / "run", LOST[what]
    names: list[list[Path]] = []

    def act() -> None:
        lose(folder)
        names.append(sorted(tmp_path.rglob("*")))

    if late:
        then(monkeypatch, "vitlab.training.observer.Observer.known", act)
    with (
        each_step(after=lambda t, state, b: state.step == 3 and not late and act()),
        pytest.raises(RunError, match=said),
    ):
        vitlab.train(RECIPE, folder, host=EACH)
    assert sorted(tmp_path.rglob("*")) == names[0]


# Names that are not Unicode

ODD = os.fsdecode(b"odd\xff")
SMALL = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/8", "image_size": 32, "epochs": 1}


def test_names_that_run_toml_cannot_hold_are_refused_first(tmp_path: Path) -> None:
    data = photo_folder(tmp_path / ODD / "data", {"a": 4, "b": 4})
    good = shutil.copytree(data, tmp_path / "good")
    for what, out in ((data, "run"), (good, ODD)):
        with pytest.raises(OptionError, match=r"the name .*odd\\udcff.* is not Unicode: rename it"):
            vitlab.train(
                vitlab.recipe("small", data=str(what), **SMALL), tmp_path / "out" / out, host=LIGHT
            )
    (good / "a").rename(good / ODD)
    with pytest.raises(DataError, match=r"the class name 'odd\\udcff' is not Unicode"):
        vitlab.train(
            vitlab.recipe("small", data=str(good), **SMALL), tmp_path / "out" / "run", host=LIGHT
        )
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptionError, match=r"odd\\udcff' is not Unicode"):
        vitlab.train(vitlab.recipe("small", str(good), label_column=(ODD,), **SMALL), host=LIGHT)


def test_files_whose_names_are_not_unicode_are_images_like_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    data = photo_folder(tmp_path / "data", {"a": 6, "b": 6})
    for file in sorted(data.rglob("*.png")):
        file.rename(file.with_name(f"{file.stem}{ODD}.png"))
    recipe = vitlab.recipe("small", data=str(data), **SMALL)
    run = vitlab.train(
        recipe, tmp_path / "run", command=f"train {ODD}", host=vitlab.Host(effort=SHOWN)
    )
    assert r"\udcff" in (run.folder / "report.html").read_text()
    assert vitlab.train(recipe, run.folder, resume=True, host=vitlab.Host(effort=SHOWN)).metrics
    odd = str(data / "a" / f"000{ODD}.png")
    capsys.readouterr()
    assert json.loads(call(capsys, "predict", str(run.folder), odd, "--json")[1])["predictions"]
    code, out, _ = call(capsys, "predict", str(run.folder), odd)
    assert (code, r"000odd\udcff.png" in out) == (0, True)
    assert call(capsys, "evaluate", str(run.folder), str(data))[0] == 0
