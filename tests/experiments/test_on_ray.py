"""Cells on a Ray cluster, which is a fake here; a real one is killed in `test_killed.py`."""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import vitlab
from conftest import LIGHT, call
from experiments.small import HOST, TINY, recipe
from vitlab.errors import DataError, DiskError, OptionError, RunError
from vitlab.experiments import side_by_side
from vitlab.experiments.cells import Setup, with_room
from vitlab.experiments.side_by_side import RayTasks
from vitlab.training.stop import Interrupted


class FakeRay(ModuleType):
    """A cluster that is there already; a task is done when it is waited for."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError = type("RayError", (Exception,), {})  # type: ignore[attr-defined]
        task_error = type("RayTaskError", (self.exceptions.RayError,), {})
        self.exceptions.RayTaskError = task_error  # type: ignore[attr-defined]
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")
        self.is_initialized, self.put, self.shutdown = lambda: True, lambda thing: thing, None
        self.takes: dict[str, Any] = {}
        self.cancelled: list[Any] = []
        self.begun = 0
        self.failing: Callable[[int], None] = lambda number: None

    def nodes(self) -> list[dict[str, Any]]:
        """Two machines of 8 cores, and one that has gone."""
        alive = [{"Resources": {"CPU": 8.0}, "Alive": True}] * 2
        return [*alive, {"Resources": {"CPU": 8.0}, "Alive": False}]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_assigned_resources=lambda: {"CPU": 1.0})

    def remote(self, **takes: Any) -> Callable[[Callable[..., Any]], Any]:
        self.takes = takes
        return lambda work: SimpleNamespace(remote=lambda *given: Task(work, given))

    def wait(
        self, tasks: list[Any], num_returns: int = 1, timeout: float = 0
    ) -> tuple[list[Any], list[Any]]:
        if num_returns == 1 and len(tasks) not in (0, len(self.cancelled)):
            self.begun += 1
            self.failing(self.begun)
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, thing: Any) -> Any:
        return thing.work(*thing.given) if isinstance(thing, Task) else thing

    def cancel(self, task: Any) -> None:
        self.cancelled.append(task)


class Task:
    """A task that waits."""

    def __init__(self, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self.work, self.given = work, given


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", fake.exceptions)
    yield fake
    side_by_side._received.cache_clear()


def of_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in ("seconds", "run")} for row in rows]


def test_rows_are_those_of_one_process(ray: FakeRay, few: Path, tmp_path: Path) -> None:
    """A rate diverges; the sweep's last run is a task, too."""
    how: dict[str, Any] = {"share": 0.3, "host": HOST}
    rates = [0.003, 1e30]
    here = vitlab.repeat(recipe(few), tmp_path / "here", 2, sweep=rates, **how)
    there = vitlab.repeat(recipe(few), tmp_path / "there", 2, sweep=rates, on="ray", **how)
    assert ray.takes == {"max_retries": 3, "num_cpus": 4}
    assert ray.begun == 4
    assert of_rows(there["runs"]) == of_rows(here["runs"])
    assert of_rows(there["sweep"]["runs"]) == of_rows(here["sweep"]["runs"])
    assert [row["diverged"] for row in there["sweep"]["runs"]] == [False, True]
    swept = vitlab.sweep(recipe(few), tmp_path / "swept", rates, on="ray", **how)
    assert (ray.begun, swept.metrics["nll"]) == (7, here["runs"][0]["nll"])


def test_an_interruption_cancels_what_is_done_and_it_goes_on(
    ray: FakeRay, few: Path, tmp_path: Path
) -> None:
    def stop(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    ray.failing = stop
    with pytest.raises(Interrupted, match="pass --resume to continue"):
        vitlab.cross_validate(recipe(few), tmp_path / "run", 3, on="ray", host=HOST)
    assert len(ray.cancelled) == 2
    result = vitlab.cross_validate(recipe(few), tmp_path / "run", 3, resume=True, host=HOST)
    assert len(result["runs"]) == 3


def test_what_becomes_of_a_task_that_fails(ray: FakeRay, few: Path, tmp_path: Path) -> None:
    def die(number: int) -> None:
        if number == 2:
            error: Exception = ray.exceptions.RayError("The worker died.\nmore")
            ray.get = lambda thing: (_ for _ in ()).throw(error)  # type: ignore[method-assign]

    ray.failing = die
    with pytest.raises(
        RunError, match=r"Ray gave up seed-5 \(The worker died.\): pass resume=True"
    ):
        vitlab.repeat(recipe(few), tmp_path / "run", 3, on="ray", host=HOST)
    assert len(ray.cancelled) == 1
    assert (
        len(vitlab.repeat(recipe(few), tmp_path / "run", 3, resume=True, host=LIGHT)["runs"]) == 3
    )


def refuse(what: str) -> str:
    raise DataError(what) if what == "refuse" else ValueError(what)


def test_errors_of_tasks_keep_their_type(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, error in (("refuse", DataError), ("a bug", ValueError)):
        with pytest.raises(error, match=given), RayTasks(refuse, "cpu", tmp_path) as tasks:
            tasks.begin("one", given)
            tasks.finished()
        side_by_side._received.cache_clear()
    hidden = tmp_path / "hidden"
    said = r"node 10\.0\.0\.7 cannot see .*hidden: choose a folder"
    with pytest.raises(DiskError, match=said), RayTasks(refuse, "cpu", hidden) as tasks:
        tasks.begin("one", "refuse")
        tasks.finished()
    monkeypatch.setattr(ray, "put", lambda thing: (_ for _ in ()).throw(TypeError("a lock")))
    with pytest.raises(OptionError, match=r"functions that can be pickled \(a lock\)"):
        RayTasks(refuse, "cpu", tmp_path).__enter__()


@pytest.mark.usefixtures("ray")
def test_a_plan_has_as_many_at_once_as_there_is_room_for(capsys: Any, few: Path) -> None:
    for given, jobs in ((1, 4), (3, 3)):
        with with_room(Setup(HOST, jobs=given, on="ray")) as setup:
            assert setup.jobs == jobs
    words = ["train", str(few), *(f"--{key}={value}" for key, value in TINY.items())]
    words += ["--recipe", "small", "--workers", "0", "--device", "cpu", "--seeds", "2"]
    code, text, err = call(capsys, *words, "--on", "ray", "--dry-run", "--json")
    assert code == 0, err
    assert json.loads(text)["at_once"] == 4
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.usefixtures("ray")
def test_who_shares_the_work_already_is_refused(few: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="starts its own processes: leave out cells"):
        vitlab.repeat(recipe(few), tmp_path / "a", 2, on="ray", cells="0/2", host=LIGHT)
    with pytest.raises(OptionError, match="on must be ray, or empty for this process, not 'dask'"):
        vitlab.sweep(recipe(few), tmp_path / "a", [0.1], on="dask", host=LIGHT)  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()


def test_without_ray_one_line_names_the_extra(
    few: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    absent = lambda name, *more: None if name == "ray" else real(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    for words in (
        ("train", str(few), "--seeds", "2"),
        ("train", str(few), "--folds", "2", "--dry-run"),
        ("train", str(few), "--sweep", "0.1"),
        ("study", "positions"),
    ):
        code, out, err = call(capsys, *words, "--on", "ray")
        said = f'vitlab {words[0]}: on=ray needs the package ray: pip install "vitlab[ray]"'
        assert (code, out, err.splitlines()[-1]) == (2, "", said)
    code, _, err = call(capsys, "train", str(few), "--on", "ray")
    assert (code, "on=ray applies only with sweep, folds or seeds" in err) == (2, True)
    assert list(Path.cwd().iterdir()) == []
