"""Signals at any moment, damaged journals, folders that vanish, two starts: a run goes on."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import TINY, call, draw_reports, photo_folder
from steps import asked_to_stop, each_step, killed_before
from vitlab.data.loading.loader import WorkerDiedError, deaths_reported_late, started
from vitlab.errors import DataError, OptionError, RunError
from vitlab.files import sha256
from vitlab.recipes.recipe import Host
from vitlab.training import checkpoints
from vitlab.training.observer import Observer
from vitlab.training.stop import Interrupted, Stop

QUICK = TINY | {"epochs": 2, "batch": 256, "test_every": 1}
RECIPE = vitlab.recipe("digits", **QUICK)
EACH = Host(checkpoint_every=0)


@pytest.fixture(autouse=True)
def _plain_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time of a small run."""
    page = lambda folder, *rest: folder.report.write_text("report")  # noqa: E731
    monkeypatch.setattr("vitlab.report.gather.write_report", page)


def outcome(folder: Path) -> tuple[str, str, list[dict[str, Any]]]:
    """The model, and what the journal says but for speeds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("kind", "step", "epoch", "loss", "accuracy", "lr", "nll", "ece")
    kept = [{key: line[key] for key in keys if key in line} for line in lines]
    model = folder / "model"
    return sha256(model / "model.safetensors"), sha256(model / "config.json"), kept


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    return vitlab.train(RECIPE, tmp_path_factory.mktemp("whole") / "run").folder


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was stopped after five of twelve steps, with two checkpoints."""
    folder = tmp_path / "run"
    with asked_to_stop(5), pytest.raises(Interrupted, match="stopped after step 5 of 12"):
        vitlab.train(RECIPE, folder, host=EACH)
    return folder


def resumed(folder: Path) -> tuple[str, str, list[dict[str, Any]]]:
    """What becomes of a run that goes on, and leaves no drafts."""
    vitlab.train(RECIPE, folder, resume=True)
    found = {each.name for each in folder.rglob(".*")}
    assert found == {".lock"}
    return outcome(folder)


def then(
    monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], Any], *, turn: int = 1
) -> None:
    """Let something happen when a function is called for the nth time."""
    module, _, last = name.rpartition(".")
    owner: Any = __import__(module, fromlist=["_"]) if module.islower() else None
    if owner is None:
        place, _, kind = module.rpartition(".")
        owner = getattr(__import__(place, fromlist=["_"]), kind)
    real, calls = getattr(owner, last), []

    def wrapped(*args: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == turn:
            act()
        return real(*args, **named)

    monkeypatch.setattr(owner, last, wrapped)


# Signals

MOMENTS = {
    "data": ("vitlab.data.learning.splits_of", 1, "before the first step"),
    "duplicates": ("vitlab.training.run.find_leaks", 1, "before the first step"),
    "model": ("vitlab.training.first_state.build", 1, "before the first step"),
    "run.toml": ("vitlab.runs.run_folder.RunFolder.start", 1, "after step 0: pass --resume"),
    "start": ("vitlab.training.screen.announcement", 1, "after step 0: pass --resume"),
    "evaluation": ("vitlab.training.observer.Observer.measure", 1, "after step 6 of 12; pass"),
    "last": ("vitlab.training.observer.Observer.measure", 2, "after step 12 of 12; pass"),
    "best": ("vitlab.training.session.Session.save", 1, "after the last step: pass --resume"),
    "model saved": ("vitlab.training.ending.save", 1, "after the last step: pass --resume"),
    "test": ("vitlab.training.observer.Observer.known", 1, "after the last step: pass --resume"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_at_any_moment_stops_the_run_and_it_goes_on_to_the_same(
    moment: str, whole: Path, tmp_path: Path
) -> None:
    folder, (name, turn, said) = tmp_path / "run", MOMENTS[moment]
    number = signal.SIGINT if turn == 1 else signal.SIGTERM
    with pytest.MonkeyPatch.context() as patch:
        then(patch, name, lambda: signal.raise_signal(number), turn=turn)
        with pytest.raises(Interrupted, match=said):
            vitlab.train(RECIPE, folder)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert folder.exists() == ("before the first step" not in said)
    assert resumed(folder) == outcome(whole)


def test_a_signal_during_the_report_lets_the_run_finish(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then(
        monkeypatch, "vitlab.report.gather.write_report", lambda: signal.raise_signal(signal.SIGINT)
    )
    run = vitlab.train(RECIPE, tmp_path / "run")
    assert outcome(run.folder) == outcome(whole)


def test_what_a_library_makes_of_a_signal_is_an_interruption(tmp_path: Path) -> None:
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


# Workers


def test_a_worker_that_dies_in_an_evaluation_saves_the_run(whole: Path, tmp_path: Path) -> None:
    def die() -> None:
        raise WorkerDiedError("a data-loading worker died")

    with pytest.MonkeyPatch.context() as patch:
        then(patch, "vitlab.training.observer.Observer.measure", die)
        with pytest.raises(RunError, match="died; saved after step 6: pass --resume to continue"):
            vitlab.train(RECIPE, tmp_path / "run")
    assert resumed(tmp_path / "run") == outcome(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Observer, "known", lambda self, source: None)
        then(patch, "vitlab.training.observer.Observer.predict", die, turn=3)
        with pytest.raises(RunError, match="died; pass --resume to finish the run"):
            vitlab.train(RECIPE, tmp_path / "other")
    assert resumed(tmp_path / "other") == outcome(whole)


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


# The journal


def garbled(content: bytes) -> dict[str, bytes | None]:
    """What a disk, a power cut or a person may leave of a journal."""
    return {
        "missing": None,
        "cut": content[:300],
        "flipped": content[:100] + bytes([content[100] ^ 0x80]) + content[101:],
        "not text": content + b"\xff\xfe\n",
        "another line": content + b'{"x": 1}\n',
    }


@pytest.mark.parametrize("damage", garbled(b" " * 999))
def test_whatever_becomes_of_the_journal_it_is_what_it_was(
    damage: str, stopped: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = stopped / "metrics.jsonl"
    left = garbled(journal.read_bytes())[damage]
    journal.unlink() if left is None else journal.write_bytes(left)
    assert resumed(stopped) == outcome(whole)
    repaired = damage in ("missing", "cut", "flipped")
    assert capsys.readouterr().err.count(": restored from the checkpoint\n") == repaired


def test_a_finished_run_whose_journal_is_lost_is_finished_again(
    whole: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace('"result"', '"resulu"'))
    assert resumed(run) == outcome(whole)


def test_checkpoints_without_a_journal_are_resumed(stopped: Path, whole: Path) -> None:
    for place in (stopped / "checkpoints").iterdir():
        (place / "metrics.jsonl").unlink()
        names = (checkpoints.TENSORS, checkpoints.STATE)
        entries = {name: checkpoints.entry(place / name) for name in names}
        checkpoints.write_manifest(place, int(place.name[5:]), entries)
    assert resumed(stopped) == outcome(whole)


# Two starts on one folder


@pytest.mark.parametrize("killed", [False, True], ids=["finished", "killed"])
@pytest.mark.parametrize("seed", [0, 7])
def test_of_two_starts_the_later_one_overwrites_nothing(
    seed: int, killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = tmp_path / "run", {}

    def other() -> None:
        if not seen:
            seen["begun"] = b""
            if killed:
                with killed_before(3), pytest.raises(KeyboardInterrupt):
                    vitlab.train(RECIPE, folder, host=EACH)
            else:
                vitlab.train(RECIPE, folder)
            seen["begun"] = (folder / "run.toml").read_bytes()

    then(monkeypatch, "vitlab.training.run.find_leaks", other)  # after the folder was looked at
    with pytest.raises(RunError, match=r"another process has trained in .* meanwhile"):
        vitlab.train(vitlab.recipe("digits", **QUICK, seed=seed), folder, resume=True)
    assert (folder / "run.toml").read_bytes() == seen["begun"]
    if seed:
        with pytest.raises(RunError, match="was started with seed=0, not 7"):
            vitlab.train(vitlab.recipe("digits", **QUICK, seed=seed), folder, resume=True)
    else:
        assert vitlab.train(RECIPE, folder, resume=True).metrics["images"] == 359


def test_of_two_continuations_the_later_one_adds_nothing(
    stopped: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other() -> None:
        monkeypatch.undo()
        monkeypatch.setattr("vitlab.report.gather.write_report", lambda *rest: None)
        vitlab.train(RECIPE, stopped, resume=True)

    then(monkeypatch, "vitlab.training.run.first_state", other)
    with pytest.raises(RunError, match=r"another process has trained in .* meanwhile"):
        vitlab.train(RECIPE, stopped, resume=True)
    assert outcome(stopped) == outcome(whole)


# Folders that vanish


def vanish(folder: Path) -> None:
    shutil.rmtree(folder)


def replace_by_another(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    folder.rename(folder.with_name("old"))
    folder.with_name("copy").rename(folder)


LOST = {
    "all": (vanish, "run was removed or replaced during the run: nothing more was written"),
    "replaced": (replace_by_another, "run was removed or replaced during the run"),
    "run.toml": (lambda folder: (folder / "run.toml").unlink(), "run.toml was removed"),
    "checkpoints": (
        lambda folder: shutil.rmtree(folder / "checkpoints"),
        "checkpoints was removed",
    ),
}


@pytest.mark.parametrize(
    ("what", "phase"), [*((what, "steps") for what in LOST), ("all", "test"), ("run.toml", "test")]
)
def test_a_folder_that_vanishes_ends_the_run_and_stays_away(
    what: str, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (lose, said) = tmp_path / "run", LOST[what]
    names: list[list[str]] = []

    def act(*_: Any) -> None:
        lose(folder)
        names.append(sorted(str(each) for each in tmp_path.rglob("*")))

    if phase == "test":
        then(monkeypatch, "vitlab.training.observer.Observer.known", act)
    with (
        each_step(after=lambda t, s, b: s.step == 3 and phase == "steps" and act()),
        pytest.raises(RunError, match=said),
    ):
        vitlab.train(RECIPE, folder, host=EACH)
    assert sorted(str(each) for each in tmp_path.rglob("*")) == names[0]


# Names that are not Unicode

ODD = os.fsdecode(b"odd\xff")
SMALL = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/8", "image_size": 32, "epochs": 1}


def test_names_that_run_toml_cannot_hold_are_refused_first(tmp_path: Path) -> None:
    data = photo_folder(tmp_path / ODD / "data", {"a": 4, "b": 4})
    good = shutil.copytree(data, tmp_path / "good")
    for error, what, out in ((OptionError, data, "run"), (OptionError, good, ODD)):
        with pytest.raises(error, match=r"the name .*odd\\udcff.* is not Unicode: rename it"):
            vitlab.train(vitlab.recipe("small", data=str(what), **SMALL), tmp_path / "out" / out)
    (good / "a").rename(good / ODD)
    with pytest.raises(DataError, match=r"the class name 'odd\\udcff' is not Unicode"):
        vitlab.train(vitlab.recipe("small", data=str(good), **SMALL), tmp_path / "out" / "run")
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptionError, match=r"odd\\udcff' is not Unicode"):
        vitlab.train(vitlab.recipe("small", str(good), label_column=(ODD,), **SMALL))


def test_files_whose_names_are_not_unicode_are_images_like_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    draw_reports(monkeypatch)  # the report shows these names
    data = photo_folder(tmp_path / "data", {"a": 6, "b": 6})
    for file in sorted(data.rglob("*.png")):
        file.rename(file.with_name(f"{file.stem}{ODD}.png"))
    recipe = vitlab.recipe("small", data=str(data), **SMALL)
    run = vitlab.train(recipe, tmp_path / "run", command=f"train {ODD}")
    assert r"\udcff" in (run.folder / "report.html").read_text()
    assert vitlab.train(recipe, run.folder, resume=True).metrics
    odd = str(data / "a" / f"000{ODD}.png")
    capsys.readouterr()
    assert json.loads(call(capsys, "predict", str(run.folder), odd, "--json")[1])["predictions"]
    code, out, _ = call(capsys, "predict", str(run.folder), odd)
    assert (code, r"000odd\udcff.png" in out) == (0, True)
    assert call(capsys, "evaluate", str(run.folder), str(data))[0] == 0
