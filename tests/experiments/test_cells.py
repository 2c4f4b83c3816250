"""The engine of experiments: a series of seeds, parts of its cells, side by side, the list."""

import json
import shutil
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import vitlab
from conftest import LIGHT, call
from experiments.pieces import work
from experiments.small import HOST, TINY, recipe
from steps import asked_to_stop
from vitlab.errors import OptionError, RunError, UserError
from vitlab.experiments import side_by_side
from vitlab.experiments.cells import Cell, CellsLeftError, Setup
from vitlab.experiments.repeats import intervals_of_means
from vitlab.experiments.several import recorded
from vitlab.experiments.side_by_side import SideBySide
from vitlab.experiments.sweep import best_of
from vitlab.experiments.timing import RunCost, dry_run
from vitlab.models.config import config_of
from vitlab.models.cost import cost
from vitlab.recipes.recipe import Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.stop import Interrupted


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, few: Path) -> dict[str, Any]:
    """Two seeds with the rate of a sweep, of whose three rates one diverges."""
    out = tmp_path_factory.mktemp("tuned") / "run"
    rates = [0.003, 1e30, 0.03]
    return vitlab.repeat(recipe(few), out, 2, sweep=rates, share=0.3, host=HOST, command="typed")


def test_all_seeds_have_the_rate_that_the_sweep_chose(
    tuned: dict[str, Any], few: Path, tmp_path: Path
) -> None:
    """The protocol of the ViT paper's Table 2, whose runs can be repeated by hand."""
    (rate,) = tuned["sweep"]["chosen"].values()
    rows = {row["lr"]: row for row in tuned["sweep"]["runs"]}
    assert best_of([*rows.values()])["lr"] == rate
    folders = [RunFolder(row["run"]) for row in tuned["runs"]]
    assert [folder.recipe.seed for folder in folders] == tuned["seeds"] == [4, 5]
    assert folders[0].recipe.changed(seed=5) == folders[1].recipe
    assert len({row["nll"] for row in tuned["runs"]}) == 2
    for row, own in (
        (tuned["runs"][1], {"lr": rate, "seed": 5}), (rows[0.03], {"lr": 0.03, "dev_share": 0.3}),
    ):  # fmt: skip
        alone = vitlab.train(recipe(few, **own), tmp_path / str(own["lr"]) / "run", host=HOST)
        assert alone.metrics["nll"] == row["nll"]
        shutil.rmtree(alone.folder)
    assert [tuned[key] for key in ("images", "model")] == [5, folders[0].result()["model"]]
    page = Path(tuned["report"]).read_text()
    for words in (f"All were trained with lr {rate:g}, which a sweep chose.", 'class="chosen"',
                  "2 seeds (4 to 5)", "standard deviation"):  # fmt: skip
        assert words in page
    tried = RunFolder(rows[1e30]["run"])
    assert tried.path == Path(tuned["run"]) / "sweep" / "lr-1e+30"
    assert (tried.state, tried.recipe.seed, tried.recipe.data.dev_share) == ("diverged", 4, 0.3)


def test_mean_deviation_and_interval(tuned: dict[str, Any]) -> None:
    for name in ("accuracy", "nll", "mcc", "auroc"):
        values = [row[name] for row in tuned["runs"]]
        assert tuned[name] == tuned["mean"][name] == pytest.approx(np.mean(values))
        assert tuned["std"][name] == pytest.approx(np.std(values, ddof=1))
    values = [row["nll"] for row in tuned["runs"]]
    error = np.std(values, ddof=1) / np.sqrt(2)
    known = stats.t.interval(0.95, 1, np.mean(values), error)
    assert tuned["intervals"]["nll"] == pytest.approx(known, rel=1e-6)
    found = {"mean": {"accuracy": 0.99, "nll": 1.0}, "std": {"accuracy": 0.1, "nll": 0.0}}
    assert intervals_of_means(found, 3)["accuracy"][1] == 1  # a share ends there
    assert intervals_of_means(found, 3)["nll"] == [1, 1]


def test_a_finished_one_is_told_again_and_another_one_refused(
    tuned: dict[str, Any], few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tuned["run"], tmp_path / "copy")
    words = ["train", "--out", str(folder), "--resume"]
    code, out, err = call(capsys, *words, "--json")
    assert code == 0, err
    assert json.loads(out) == tuned
    assert all(word in call(capsys, *words)[1] for word in ("diverged", "lr", "seed", "std"))
    code, _, err = call(capsys, *words, "--sweep", "0.1")
    assert (code, "was started with sweep=[0.003, 0.03, 1e+30], not [0.1]" in err) == (2, True)
    how: dict[str, Any] = {"sweep": [0.003, 0.03, 1e30], "share": 0.3}
    with pytest.raises(RunError, match="was started with seeds=2, not 3: leave the option out"):
        vitlab.repeat(recipe(few), folder, 3, resume=True, **how, host=LIGHT)
    with pytest.raises(RunError, match="already contains a series of seeds: pass resume=True"):
        vitlab.repeat(recipe(few), folder, 2, **how, host=LIGHT)
    with pytest.raises(RunError, match="contains a series of seeds, not a cross-validation"):
        vitlab.cross_validate(recipe(few), folder, 2, resume=True, host=LIGHT)
    with pytest.raises(OptionError, match="seeds must be at least 2 and at most 9999, not 1"):
        vitlab.repeat(recipe(few), tmp_path / "one", 1, host=LIGHT)
    file = folder / "campaign.json"
    file.write_text(file.read_text().replace("series of seeds", "vtab"))
    with pytest.raises(RunError, match="contains a vtab: continue it with its own command"):
        recorded(folder)


def test_parts_of_the_cells_come_to_the_same(
    tuned: dict[str, Any], few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    how: dict[str, Any] = {"sweep": [0.003, 0.03, 1e30], "share": 0.3, "host": HOST}
    for part in ("1/2", "0/2"):
        with pytest.raises(
            CellsLeftError, match="repeat the command without cells=, with resume=True"
        ):
            vitlab.repeat(recipe(few), out, 2, cells=part, **how)
    names = {file.parent.name for file in out.rglob("run.toml")}
    assert names == {"lr-0.003", "lr-0.03", "lr-1e+30"}, "the others follow these"
    for part, seed in (("1/2", 4), ("0/2", 5)):
        with pytest.raises(CellsLeftError):
            vitlab.repeat(recipe(few), out, 2, cells=part, **how)
        assert RunFolder(out / f"seed-{seed}").state == "done", "once these are done"
    result = vitlab.repeat(recipe(few), out, 2, resume=True, **how)
    assert result["mean"] == tuned["mean"]
    words = ["train", str(few), *(f"--{key}={value}" for key, value in TINY.items())]
    words += ["--recipe", "small", "--workers", "0", "--seeds", "2", "--out", str(tmp_path / "c")]
    code, text, err = call(capsys, *words, "--cells", "0/2")
    assert (code, text) == (0, "")
    assert "part 0/2 is done, 1 run" in err


def test_a_cell_with_functions_that_cannot_be_sent_is_refused(few: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="needs functions that other processes can import"):
        vitlab.repeat(
            recipe(few), tmp_path / "a", 2, jobs=2, host=HOST, transform=lambda images, _: images
        )
    assert not (tmp_path / "a").exists()


def test_labels_in_words() -> None:
    labels = {"lr": 1e-3, "layer_decay": 0.75, "fold": "1/3", "seed": 2}
    cell = Cell("a", Recipe(), labels)
    assert cell.title == "lr 0.001, layer decay 0.75, fold 1/3, seed 2"


class Dead:
    """A pool whose process has died."""

    def __init__(self, *given: object) -> None:
        self.shutdown = lambda **how: None

    def submit(self, *given: object) -> Future[str]:
        """What becomes of the work."""
        failed = Future[str]()
        failed.set_exception(BrokenProcessPool())
        return failed


def test_processes_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ours"), SideBySide(work, 2, 1) as processes:
        processes.begin("first", "a")
        processes.begin("second", "b")
        assert dict([processes.finished(), processes.finished()]) == {"first": "aa", "second": "bb"}
        processes.begin("third", "refuse")
        with pytest.raises(RunError, match=r"^no$"):
            processes.finished()
        processes.begin("long", str(tmp_path / "done"))
        raise UserError("ours")
    assert not (tmp_path / "done").exists(), "what was being done was interrupted"
    monkeypatch.setattr(side_by_side, "ProcessPoolExecutor", Dead)
    with pytest.raises(RunError, match="a process died"), SideBySide(work, 1, 1) as processes:
        processes.begin("fourth", "a")
        processes.finished()


def test_the_list_says_how_far_runs_are(
    tuned: dict[str, Any], few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(tuned["run"], folder / "tuned")
    with pytest.raises(Interrupted), asked_to_stop(5):  # one step after a test
        vitlab.train(recipe(few, steps=8, test_every=0.1), folder / "cut", host=HOST)
    (folder / "bad").mkdir()
    (folder / "bad" / "run.toml").write_text("[")
    files = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    code, text, err = call(capsys, "runs", str(folder), "--json")
    assert code == 0, err
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == files
    result = json.loads(text)
    states = {row["name"]: row["state"] for row in result["runs"]}
    assert states == {
        "bad": "damaged", "cut": "stopped", "tuned/seed-4": "done", "tuned/seed-5": "done",
        "tuned/sweep/lr-0.003": "done", "tuned/sweep/lr-0.03": "done",
        "tuned/sweep/lr-1e+30": "diverged",
    }  # fmt: skip
    rows = {row["name"]: row for row in result["runs"]}
    assert rows["cut"]["step"] == 5
    assert rows["tuned/seed-5"]["accuracy"] == tuned["runs"][1]["accuracy"]
    assert rows["tuned/seed-5"]["best"] >= rows["tuned/seed-5"]["accuracy"]
    (campaign,) = result["experiments"]
    assert (campaign["name"], campaign["state"], campaign["runs"]) == ("tuned", "done", 5)
    assert np.isclose(campaign["accuracy"], tuned["accuracy"])
    listed = [name for name in states if name != "bad"]
    assert dict(zip(listed, result["recipe"]["--seed"], strict=True))["tuned/seed-5"] == "5"
    with RunFolder(folder / "cut").locked():
        assert RunFolder(folder / "cut").state == "running"
    code, text, _ = call(capsys, "runs", str(folder / "tuned"))
    assert (code, "--seed 5" in text, "series of seeds" in text) == (0, True, True)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--seeds", "2", "--sweep", "0.003", "0.03"],
         ["sweep/lr-0.003", "sweep/lr-0.03", "seed-4", "seed-5"]),
        (["--sweep", "0.003", "0.03"], ["sweep/lr-0.003", "sweep/lr-0.03", "all images"]),
        (["--folds", "3"], ["fold-1-of-3", "fold-2-of-3", "fold-3-of-3"]),
    ],
)  # fmt: skip
def test_a_dry_run_says_the_cost_and_leaves_nothing(
    words: list[str],
    names: list[str],
    few: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Runs of 100 steps on 16 images or less, of which 9 are timed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flags = [f"--{key}={value}" for key, value in (TINY | {"steps": 100, "seed": 4}).items()]
    flags += ["--recipe", "small", "--workers", "0", "--device", "cpu", "--out", "there"]
    code, text, err = call(capsys, "train", str(few), *flags, *words, "--dry-run", "--json")
    assert code == 0, err
    result = json.loads(text)
    assert [row["name"] for row in result["rows"]] == names
    assert all(row["steps"] == 100 for row in result["rows"])
    assert (result["runs"], result["at_once"]) == (len(names), 1)
    macs = cost(config_of(TINY["model"], image_size=16, classes=2)).macs
    assert result["macs"] == 3 * macs * 8 * 100 * len(names)
    alone = sum(row["seconds"] for row in result["rows"])
    assert result["seconds"] >= 0.999 * alone > 0
    assert not list(tmp_path.iterdir())
    assert not Path("there").exists()
    if "--folds" in words:
        _, text, _ = call(capsys, "train", str(few), *flags, *words, "--dry-run")
        assert f"{len(names)} runs, " in text
        assert "multiply-adds, about" in text


def test_an_interrupted_dry_run_keeps_nothing_to_resume(few: Path) -> None:
    cells = [Cell("a", recipe(few, steps=100), {})]
    text = r"^interrupted: repeat the command$"
    with pytest.raises(KeyboardInterrupt, match=text), asked_to_stop(1):
        dry_run(cells, Setup(HOST))
    assert not list(Path().iterdir())


def test_what_diverges_within_a_dry_run_costs_nothing(few: Path) -> None:
    cells = [Cell("a", recipe(few, steps=100, lr=1e30), {})]
    assert dry_run(cells, Setup(HOST))["rows"][0]["seconds"] == 0


def test_the_steps_of_a_run_go_with_the_images_that_it_learns_from() -> None:
    """Held-out images and folds; tests on held-out images count, the last one within `fixed`."""
    own = Recipe(epochs=4.0, test_every=1.0)
    known = RunCost(fixed=5.0, step=0.1, steps=100.0, macs=1.0, measure=2.0, test=3.0)
    whole = Cell("a", own, {})
    assert (known.steps_of(whole), known.seconds(whole)) == (400, 5 + 2 + 40 + 3 * 3)
    assert known.steps_of(Cell("a", own.changed(dev_share=0.25), {})) == 300
    assert known.steps_of(Cell("a", own.changed(fold="1/5"), {})) == 320
    timed = Cell("a", own.changed(budget="1m"), {}, searches=True)
    assert (known.steps_of(timed), known.seconds(timed)) == (pytest.approx(550), 60)
    search = Cell("a", own.changed(steps=50), {}, searches=True)
    assert (known.steps_of(search), known.seconds(search)) == (50, 5 + 5)
