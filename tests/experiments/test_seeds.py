"""Several seeds: their mean, their deviation, and going on where they stopped."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import vitlab
from experiments.small import HOST, recipe
from vitlab.errors import OptionError, RunError
from vitlab.experiments.repeats import intervals_of_means
from vitlab.experiments.several import recorded
from vitlab.experiments.statistics import t_quantile
from vitlab.runs.run_folder import RunFolder


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory, few: Path) -> dict[str, Any]:
    """A finished series of two seeds."""
    return vitlab.repeat(recipe(few), tmp_path_factory.mktemp("repeat") / "run", 2, host=HOST)


def test_the_runs_differ_in_their_seed_alone(
    repeated: dict[str, Any], few: Path, tmp_path: Path
) -> None:
    folders = [RunFolder(row["run"]) for row in repeated["runs"]]
    assert [folder.recipe.seed for folder in folders] == repeated["seeds"] == [4, 5]
    assert folders[0].recipe.changed(seed=5) == folders[1].recipe
    assert len({row["nll"] for row in repeated["runs"]}) == 2
    alone = vitlab.train(recipe(few, seed=5), tmp_path / "alone", host=HOST)
    assert alone.metrics["nll"] == repeated["runs"][1]["nll"]
    assert repeated["images"] == alone.metrics["images"]
    assert repeated["model"] == alone.metrics["model"]


def test_mean_deviation_and_interval(repeated: dict[str, Any]) -> None:
    for name in ("accuracy", "nll", "mcc", "auroc"):
        values = [row[name] for row in repeated["runs"]]
        assert repeated[name] == repeated["mean"][name] == pytest.approx(np.mean(values))
        assert repeated["std"][name] == pytest.approx(stats.tstd(values))
    values = [row["nll"] for row in repeated["runs"]]
    known = stats.t.interval(0.95, 1, np.mean(values), stats.sem(values))
    assert repeated["intervals"]["nll"] == pytest.approx(known, rel=1e-6)
    assert repeated["intervals"]["accuracy"][0] >= 0
    page = Path(repeated["report"]).read_text()
    assert "2 seeds (4 to 5)" in page
    assert "standard deviation" in page


def test_the_quantile_is_students() -> None:
    for freedom, level in itertools.product((1, 2, 4, 30, 1000), (0.5, 0.95, 0.99)):
        known = stats.t.ppf((1 + level) / 2, freedom)
        assert t_quantile(freedom, level) == pytest.approx(known, rel=1e-6)
    found = {"mean": {"accuracy": 0.99, "nll": 1.0}, "std": {"accuracy": 0.1, "nll": 0.0}}
    assert intervals_of_means(found, 3)["accuracy"][1] == 1  # a share ends there
    assert intervals_of_means(found, 3)["nll"] == [1, 1]


def test_a_finished_one_is_told_again_and_another_one_refused(
    repeated: dict[str, Any], few: Path, tmp_path: Path
) -> None:
    folder = Path(repeated["run"])
    assert vitlab.repeat(recipe(few), folder, 2, resume=True, host=HOST) == repeated
    with pytest.raises(RunError, match="was started with seeds=2, not 3: leave the option out"):
        vitlab.repeat(recipe(few), folder, 3, resume=True)
    with pytest.raises(RunError, match="already contains a series of seeds: pass --resume"):
        vitlab.repeat(recipe(few), folder, 2)
    with pytest.raises(RunError, match="contains a series of seeds, not a cross-validation"):
        vitlab.cross_validate(recipe(few), folder, 2, resume=True)
    with pytest.raises(OptionError, match="seeds must be at least 2 and at most 9999, not 1"):
        vitlab.repeat(recipe(few), tmp_path / "one", 1)
    copy = shutil.copytree(folder, tmp_path / "copy")
    other = (copy / "campaign.json").read_text().replace("series of seeds", "vtab")
    (copy / "campaign.json").write_text(other)
    with pytest.raises(RunError, match="contains a vtab: continue it with its own command"):
        recorded(copy)
