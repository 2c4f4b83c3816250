"""Recipes over seeds and folds in `vitlab compare`, on copies of one small run; SciPy's t-tests."""

import json
import re
import shutil
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import vitlab
from conftest import call
from vitlab.errors import OptionError
from vitlab.report.comparing.short_names import recipe_names, run_names
from vitlab.runs.kept_arrays import read_arrays, write_arrays
from vitlab.runs.run_folder import RunFolder

FIRST, SECOND, THIRD = (0.81, 0.84, 0.80), (0.85, 0.87, 0.86), (0.83, 0.80, 0.90)


@pytest.fixture
def made(digits_run: Path, tmp_path: Path) -> "Maker":
    return Maker(digits_run, tmp_path / "runs")


class Maker:
    """Copies of a run, with other options, figures and test images."""

    def __init__(self, run: Path, place: Path) -> None:
        self.run, self.place = run, place

    def __call__(self, name: str, accuracy: float | None = 0.8, **fields: object) -> Path:
        """Copy the run; no accuracy: it is not finished."""
        place = self.place / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.run, place)
        text = (place / "run.toml").read_text()
        for key, value in fields.items():
            shown = json.dumps(value)
            text, count = re.subn(rf"^{key} = .*$", f"{key} = {shown}", text, flags=re.MULTILINE)
            assert count == 1, key
        (place / "run.toml").write_text(text)
        lines = [json.loads(each) for each in (place / "metrics.jsonl").read_text().splitlines()]
        if accuracy is None:
            lines = [each for each in lines if each["kind"] != "result"]
        else:
            lines[-1]["accuracy"] = accuracy
        (place / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
        return place

    def seeds(self, name: str, values: Sequence[float], first: int = 0, **fields: object) -> Path:
        """A folder as that of `--seeds`."""
        for seed, value in enumerate(values, first):
            self(f"{name}/seed-{seed}", value, seed=seed, **fields)
        (self.place / name / "campaign.json").write_text('{"campaign": "series of seeds"}')
        return self.place / name


def other_images(run: Path, shift: int, mark: str = "") -> None:
    """Let a run have been tested on other images, of data with another fingerprint, if named."""
    folder = RunFolder(run)
    arrays, about = read_arrays(folder.predictions, dict) or ({}, {})
    about |= {"data": mark} if mark else {}
    write_arrays(folder.predictions, arrays | {"keys": arrays["keys"] + shift}, about)


def shown(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
    width: int = 80,
) -> tuple[str, str]:
    monkeypatch.setenv("COLUMNS", str(width))
    code, printed, said = call(capsys, "compare", *words)
    assert code == 0, said
    return printed, said


def test_two_recipes_over_three_seeds_are_two_rows_and_a_paired_test(
    made: Maker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [made.seeds("cells", FIRST), made.seeds("cells1d", SECOND, lr=0.5)]
    found = vitlab.compare(places)
    one, other = found["recipes"]
    assert [one["name"], other["name"]] == ["cells", "cells1d"]
    assert (one["seeds"], len(one["runs"])) == ([0, 1, 2], 3)
    assert one["mean"]["accuracy"] == pytest.approx(np.mean(FIRST))
    assert one["std"]["accuracy"] == pytest.approx(np.std(FIRST, ddof=1))
    (pair,) = found["recipe_pairs"]
    expected = stats.ttest_rel(SECOND, FIRST)
    assert (pair["first"], pair["second"]) == ("cells", "cells1d")
    assert (pair["metric"], pair["test"]) == ("accuracy", "paired")
    assert pair["p"] == pair["adjusted"] == pytest.approx(expected.pvalue)
    gap = pair["differences"]["accuracy"]
    assert gap["value"] == pytest.approx(np.mean(SECOND) - np.mean(FIRST))
    assert gap["interval"] == pytest.approx(list(expected.confidence_interval(0.95)))
    assert len(found["pairs"]) == 15
    assert [each["seeds"] for each in found["seeds"]] == [[0, 1, 2], [0, 1, 2]]
    for width in (80, 60):
        printed, _ = shown(capsys, monkeypatch, *map(str, places), width=width)
        assert "81.7% ± 2.1" in printed
        assert f"{expected.pvalue:.3g}" in printed
        assert "--lr" in printed
        assert "--seed" not in printed.replace("--seeds", "")
        assert "seed-" not in printed
        assert "…" not in printed


def test_other_seeds_are_tested_by_welch(made: Maker) -> None:
    """Also where they have one seed in common."""
    first = made.seeds("a", FIRST)
    for start, values in ((3, SECOND), (2, THIRD)):
        second = made.seeds(f"b{start}", values, start, lr=0.5)
        (pair,) = vitlab.compare([first, second])["recipe_pairs"]
        expected = stats.ttest_ind(values, FIRST, equal_var=False)
        assert pair["test"] == "welch"
        assert pair["p"] == pytest.approx(expected.pvalue)
        interval = list(expected.confidence_interval(0.95))
        assert pair["differences"]["accuracy"]["interval"] == pytest.approx(interval)


def test_the_order_of_seeds_does_not_matter(made: Maker) -> None:
    first = [made(f"a{n}", FIRST[n], seed=n) for n in range(3)]
    second = [made(f"b{n}", SECOND[n], seed=n, lr=0.5) for n in range(3)]
    (pair,) = vitlab.compare([*first, second[2], second[0], second[1]])["recipe_pairs"]
    assert (pair["test"], pair["p"]) == ("paired", pytest.approx(stats.ttest_rel(SECOND, FIRST)[1]))


def test_holm_is_over_all_pairs_of_recipes(made: Maker) -> None:
    values = [FIRST, SECOND, THIRD]
    places = [
        made.seeds(name, own, lr=lr)
        for name, own, lr in zip("abc", values, (0.1, 0.2, 0.3), strict=True)
    ]
    pairs = vitlab.compare(places)["recipe_pairs"]
    ps = [stats.ttest_rel(other, one).pvalue for one, other in combinations(values, 2)]
    assert [each["p"] for each in pairs] == pytest.approx(ps)
    smallest, middle, largest = sorted(ps)
    steps = [3 * smallest, max(3 * smallest, 2 * middle)]
    steps = [min(1.0, each) for each in [*steps, max(steps[1], largest)]]
    assert sorted(each["adjusted"] for each in pairs) == pytest.approx(steps)


def test_runs_are_one_recipe_wherever_they_lie(made: Maker) -> None:
    """With other names, in other folders, their data spelled otherwise."""
    places = [
        made("mine/first", 0.8, seed=0), made("yours/x/second", 0.9, seed=1, data="./digits"),
        made("third", 0.7, seed=7, images="elsewhere"), made("apart", 0.6, lr=0.5),
    ]  # fmt: skip
    found = vitlab.compare(places)
    assert [each["seeds"] for each in found["recipes"]] == [[0, 1, 7], [0]]
    assert [len(each["runs"]) for each in found["recipes"]] == [3, 1]
    (pair,) = found["recipe_pairs"]
    assert (pair["p"], pair["test"], pair["differences"]["accuracy"]["interval"]) == (None,) * 3
    assert "there is a single run of apart: how far" in " ".join(found["notes"])


def test_a_study_has_several_recipes(made: Maker) -> None:
    """Those that chose its learning rates are none of them."""
    for seed in (0, 1):
        made(f"study/1d-stem-seed-{seed}", 0.8 + 0.01 * seed, seed=seed)
        made(f"study/none-seed-{seed}", 0.7, seed=seed, lr=0.5)
        made(f"study/none-lr-{seed}", 0.9, lr=0.1 * (1 + seed), dev_share=0.1)
    (made.place / "study" / "campaign.json").write_text('{"campaign": "study"}')
    found = vitlab.compare([made.place / "study"])
    assert [each["name"] for each in found["recipes"]] == ["1d-stem", "none"]
    assert [each["seeds"] for each in found["recipes"]] == [[0, 1], [0, 1]]


def test_models_of_one_recipe_may_be_what_a_recipe_starts_from(made: Maker) -> None:
    """Seeds of a study are fine-tuned from the pre-trained model of their seed each."""
    for seed in (0, 1):
        made(f"s/before-seed-{seed}", 0.5, seed=seed, lr=0.1)
        made(
            f"s/after-seed-{seed}", 0.8 + 0.01 * seed, seed=seed, weights=f"gone/before-seed-{seed}"
        )
    named = [made.place / "s" / f"after-seed-{seed}" for seed in (0, 1)]
    assert [each["seeds"] for each in vitlab.compare(named)["recipes"]] == [[0, 1]]
    shutil.rmtree(made.place / "s" / "before-seed-1")
    assert [each["seeds"] for each in vitlab.compare(named)["recipes"]] == [[0], [1]]


def test_a_sweep_beside_others_stands_for_its_best_run(made: Maker) -> None:
    for lr in (0.1, 0.3):
        made(f"grid/sweep/lr-{lr}", lr, lr=lr)
    rows = [{"run": f"moved/sweep/lr-{lr}"} for lr in (0.1, 0.3)]
    record = {"campaign": "sweep", "result": {"best": 1, "runs": rows}}
    sweep = made.place / "grid" / "sweep"
    (sweep / "campaign.json").write_text(json.dumps(record))
    other = made.seeds("cells", FIRST)
    found = vitlab.compare([sweep, other])
    assert [each["name"] for each in found["recipes"]] == ["lr-0.3", "cells"]
    for alone in (sweep, sweep.parent):
        assert [each["name"] for each in vitlab.compare([alone])["runs"]] == ["lr-0.1", "lr-0.3"]


def test_folds_of_a_recipe_are_paired(
    made: Maker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, values, lr in (("a", FIRST, 0.1), ("b", SECOND, 0.2)):
        for fold, value in enumerate(values, 1):
            mark = f"{fold}"  # of the training images, which each fold has others of
            run = made(f"{name}/fold-{mark}-of-3", value, fold=f"{fold}/3", lr=lr, fingerprint=mark)
            other_images(run, fold, mark)
        (made.place / name / "campaign.json").write_text('{"campaign": "cross-validation"}')
    places = [made.place / "a", made.place / "b"]
    found = vitlab.compare(places)
    assert [each["folds"] for each in found["recipes"]] == [["1/3", "2/3", "3/3"]] * 2
    (pair,) = found["recipe_pairs"]
    assert (pair["test"], pair["p"]) == ("paired", pytest.approx(stats.ttest_rel(SECOND, FIRST)[1]))
    assert not found["seeds"]
    notes = " ".join(found["notes"])
    assert "folds share most of their training images" in notes
    assert "each fold is tested on images of its own" in notes
    assert "was tested on other images" not in notes
    printed, _ = shown(capsys, monkeypatch, *map(str, places))
    assert "--fold" not in printed
    other = made("c/fold-1-of-5", 0.8, fold="1/5", lr=0.1, fingerprint="1")  # of other parts
    assert len(vitlab.compare([*places, other])["recipes"]) == 3


def test_recipes_of_other_test_images_are_not_tested(made: Maker) -> None:
    """Neither by content nor, where the images are gone, by how they are chosen."""
    places = [made.seeds("a", FIRST), made.seeds("b", SECOND, lr=0.5)]
    for run in places[1].glob("seed-*"):
        other_images(run, 1)
    for _ in range(2):
        found = vitlab.compare(places)
        (pair,) = found["recipe_pairs"]
        assert (pair["metric"], pair["p"], pair["differences"]) == (None, None, {})
        assert "tested on other images, so that there is no" in " ".join(found["notes"])
        for run in places[1].glob("seed-*"):
            RunFolder(run).predictions.unlink(missing_ok=True)
            text = (run / "run.toml").read_text()
            text = re.sub(r"^fingerprint = .*$", 'fingerprint = "x"', text, flags=re.MULTILINE)
            (run / "run.toml").write_text(text)


def test_what_cannot_be_tested_is_said(made: Maker) -> None:
    """A figure that a run lacks; runs without figures; a seed twice; the same gap in all runs."""
    first, second = made.seeds("a", FIRST), made.seeds("b", SECOND, lr=0.5)
    journal = second / "seed-1" / "metrics.jsonl"
    text = journal.read_text().replace('"accuracy"', '"inaccuracy"')
    journal.write_text(text)
    found = vitlab.compare([first, second])
    assert "accuracy" not in found["recipes"][1]["mean"]
    assert found["recipe_pairs"][0]["metric"] is None
    assert "no figure in common that is the same quantity: a and b" in found["notes"]
    third = made.seeds("c", [each + 0.01 for each in FIRST], lr=0.1)
    made("c/seed-9", None, seed=9, lr=0.1)
    again = made("again", 0.1, seed=0, lr=0.1)
    found = vitlab.compare([first, third, again])
    (pair,) = found["recipe_pairs"]
    assert (pair["p"], pair["test"]) == (None, None)
    notes = " ".join(found["notes"])
    assert "exactly the same in all runs, which leaves nothing to test it by: a and c" in notes
    assert "again repeats the recipe, the seed and the fold of another run" in notes
    assert "c/seed-9 is not finished" in notes
    assert [Path(each).name for each in found["recipes"][1]["unfinished"]] == ["seed-9"]
    assert len(found["recipes"][1]["runs"]) == 3
    alike = vitlab.compare([first, made.seeds("d", FIRST, lr=0.2)])["recipe_pairs"][0]
    assert (alike["p"], alike["differences"]["accuracy"]["value"]) == (1.0, 0.0)


def test_the_limit_counts_recipes(made: Maker) -> None:
    places = [made(f"r{number}", 0.8, lr=0.01 * (number + 1)) for number in range(20)]
    places += [made(f"again{number}", 0.8, seed=1, lr=0.01 * (number + 1)) for number in range(2)]
    assert len(vitlab.compare(places)["recipes"]) == 20
    with pytest.raises(OptionError, match="these are 21 recipes: compare at most 20 at once"):
        vitlab.compare([*places, made("more", lr=0.9)])


STARTS = {".svg": b"<svg", ".pdf": b"%PDF", ".png": b"\x89PNG"}


def test_the_figure_and_the_page(made: Maker, tmp_path: Path) -> None:
    places = [made.seeds("cells", FIRST), made.seeds("cells1d", SECOND, lr=0.5), made("one", 0.8)]
    for ending, start in STARTS.items():
        for file in (tmp_path / f"a{ending}", tmp_path / f"b{ending}"):
            found = vitlab.compare(places[:2], figure=file)
            assert found["figure"] == str(file)
            assert file.read_bytes().startswith(start)
        assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()
    drawing = (tmp_path / "a.svg").read_text()
    assert {"cells", "cells1d"} <= set(re.findall(r">([^<>\n]+)</text>", drawing))
    page = tmp_path / "page.html"
    found = vitlab.compare(places[:2], page)
    text = page.read_text()
    assert "2 recipes compared, 6 runs" in text
    assert "cells1d has the best mean accuracy, 86.0% ± 1.0 over 3 runs" in text
    assert 'aria-label="Accuracy: cells 81.7% ± 2.1; cells1d 86.0% ± 1.0."' in text
    assert "paired t-test" in text
    assert re.search(r"\d of 15 pairs|Pairs of runs", text)
    ids = re.findall(r"\bid=\"([^\"]+)\"", text)
    assert len(ids) == len(set(ids))
    assert "recipes" in ids


def test_names_leave_out_what_all_share() -> None:
    def named(*recipes: str) -> list[str]:
        return recipe_names([[Path(run) for run in each.split()] for each in recipes])

    long = "r/sign-digits-vit-tiny-lr-0.00"
    assert named("r/cells/seed-0 r/cells/seed-1", "r/cells1d/seed-0") == ["cells", "cells1d"]
    assert named("A/m/seed-1 A/m/seed-2", "B/m/seed-1 B/m/seed-2") == ["A", "B"]
    assert named("r/a-s0 r/a-s1", "r/b-s0 r/b-s1") == ["a", "b"]
    assert named("r/x r/y", "r/z r/w") == ["x", "z"]
    assert named("r/x r/y", "r/c/seed-0 r/c/seed-1") == ["x", "c"]
    assert named("r/c/seed-0 r/c/seed-1") == ["c"]
    assert named(f"{long}1/seed-0 {long}1/seed-1", f"{long}3/seed-0 {long}3/seed-1") == [
        "lr-0.001", "lr-0.003"
    ]  # fmt: skip
    assert run_names([Path("a/model"), Path("b/model")]) == ["a", "b"]
    assert named("r/grid/sweep/lr-0.3", "r/c/seed-0 r/c/seed-1") == ["lr-0.3", "c"]
    assert run_names([Path("a"), Path("a/b"), Path("a/b/c")]) == ["a", "b", "c"]
