"""A study as its user meets it: refused, interrupted, continued, extended, diverging."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from slow_clock import SlowClock
from steps import each_step
from studies.small import HOST, untimed
from vitlab.data.loading.batch import Batch
from vitlab.errors import DiskError, OptionError, RunError
from vitlab.evaluation.statistics import detectable, seeds_to_see
from vitlab.experiments import cells
from vitlab.experiments.timing import timed
from vitlab.studies import study as engine
from vitlab.studies.base import Base, fine_tuning, small
from vitlab.studies.design import ACCURACY, NLL, Arm, Study, Trained
from vitlab.studies.results import cell_text, lost, markdown, rows_of
from vitlab.training.state import RunState
from vitlab.training.step import Trainer

TINY = "ViT(width=32,depth=1,heads=2,mlp=32)/4"
BASE = small("digits", TINY)


def arms(base: Base) -> tuple[Arm, ...]:
    recipe = base.recipe
    return (
        Arm("good", recipe, ("good",), {"accuracy": 0.9, "5-shot": 0.5}),
        Arm("bad", recipe.changed(lr=1e30, clip=0.0), ("bad",)),
        Arm("late", recipe, ("late",), after="bad"),
    )


OWN = Study("Own", "nobody", ("arm",), arms, (ACCURACY, NLL))


def run(out: Path, what: str | Study = OWN, **options: Any) -> dict[str, Any]:
    options = {"epochs": 0.1, "seeds": 1, "at_once": 1, "recipe": BASE, "host": HOST} | options
    return vitlab.study(what, out=out, **options)


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "timed", untimed)


def test_a_row_that_diverges_is_told_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path / "out")
    table = {line[0]: line[1:] for line in result["table"]}
    assert result["head"] == [
        "arm", "learning rate", "test accuracy", "paper: test accuracy", "NLL", "paper: 5-shot",
    ]  # fmt: skip
    assert table["good"][2::2] == ["90.0%", "50.0%"]
    assert table["bad"][1:] == table["late"][1:] == ["diverged", "", "diverged", ""]
    said = capsys.readouterr().err
    assert "row bad, seed 0 diverged: " in said
    assert "row late, seed 0 diverged: bad-seed-0 did" in said

    # again: nothing is trained, and all is the same
    monkeypatch.setattr(cells, "train", lambda *_, **__: pytest.fail("trained again"))
    again = run(tmp_path / "out")
    assert again["table"] == result["table"]
    assert again["rows"] == result["rows"]
    assert not (tmp_path / "out" / "late-seed-0").exists()  # what cannot begin leaves nothing


def test_more_seeds_and_rows_add_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "learning rate" not in run(out, only=["good"])["head"]
    file = out / "good-seed-0" / "figures.json"
    before = file.stat().st_mtime_ns
    assert (file.parent / "model").is_dir()
    assert not (file.parent / "checkpoints").exists()
    result = run(out, only=["good", "late"], seeds=2)
    assert file.stat().st_mtime_ns == before
    assert [row["name"] for row in result["rows"]] == ["good", "bad", "late"]
    assert result["rows"][0]["seeds"] == [0, 1]
    assert set(json.loads((out / "plan.json").read_text())["costs"]) == {"good", "bad", "late"}
    whole = run(tmp_path / "whole", seeds=2)
    assert [row["values"] for row in whole["rows"]] == [row["values"] for row in result["rows"]]


def test_an_interrupted_study_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", only=["good"], seeds=2)
    kept, trained = cells.train, []

    def train(*args: Any, **options: Any) -> Any:
        trained.append(args[1].name)

        def stop(line: dict[str, Any]) -> None:
            if len(trained) == 2 and line["step"] == 2:
                os.kill(os.getpid(), signal.SIGINT)
            options_line(line)

        options_line = options.pop("on_line")
        return kept(*args, on_line=stop, **options)

    monkeypatch.setattr(cells, "train", train)
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted: the same command continues$"):
        run(tmp_path / "out", only=["good"], seeds=2)
    assert json.loads((tmp_path / "out" / "campaign.json").read_text())["result"] is None
    assert not (tmp_path / "out" / "good-seed-1" / "figures.json").exists()
    again = run(tmp_path / "out", only=["good"], seeds=2)
    assert trained == ["good-seed-0", "good-seed-1", "good-seed-1"]
    assert [row["values"] for row in again["rows"]] == [row["values"] for row in whole["rows"]]


def one_arm(base: Base) -> tuple[Arm, ...]:
    return (Arm("one", base.recipe, ("one",), rates=(1e-6, 2e-6)),)


GROWING = Study("Growing", "nobody", ("arm",), one_arm, (ACCURACY,))


def test_a_grid_that_grew_goes_on_to_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At rates that change nothing all are equally good, and the smallest is chosen: an edge."""
    whole = run(tmp_path / "whole", GROWING)
    assert whole["rows"][0]["lr"] == pytest.approx(2e-3 * 1.25e-7)
    assert whole["rows"][0]["edge"] == -1
    assert whole["table"][0][1] == "2.5e-10 ‡"
    assert "‡ the smallest" in (tmp_path / "whole" / "results.md").read_text()
    kept, trained = cells.train, []

    def train(*args: Any, **options: Any) -> Any:
        trained.append(args[1].name)
        if len(trained) == 4:
            raise KeyboardInterrupt
        return kept(*args, **options)

    monkeypatch.setattr(cells, "train", train)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", GROWING)
    again = run(tmp_path / "out", GROWING)
    assert trained[2:] == [f"one-lr-further-{n}" for n in (1, 2, 2, 3)] + ["one-seed-0"]
    assert [row["values"] for row in again["rows"]] == [row["values"] for row in whole["rows"]]
    assert again["table"] == whole["table"]


def test_the_seeds_are_chosen_for_what_they_are_to_see(tmp_path: Path) -> None:
    """By the usual deviation, then by that of the folder's own result."""
    first = run(tmp_path / "out", GROWING, dry_run=True, see=2.0)
    assert (first["seeds"], first["sees"] <= 0.02) == (3, True)
    done = run(tmp_path / "out", GROWING, seeds=2)
    deviation = done["rows"][0]["std"]["accuracy"]
    again = run(tmp_path / "out", GROWING, dry_run=True, see=2.0)
    assert again["seeds"] == seeds_to_see(0.02, deviation or 0.006)
    assert again["sees"] == detectable(deviation or 0.006, again["seeds"])


def test_the_length_is_that_of_the_runs_whatever_the_recipe_lasts(tmp_path: Path) -> None:
    start = tmp_path / "start"
    vitlab.save(vitlab.create(TINY, 0, 8, channels=1, generator=torch.Generator()), start)
    begins: dict[str, dict[str, Any]] = {
        "digits": {"model": TINY, "image_size": 8},
        "vit-finetune": {"weights": str(start), "image_size": 8},  # not its 384
    }
    for name, warmup in (("digits", 5 / 60), ("vit-finetune", 500 / 20_000)):
        recipe = vitlab.recipe(name, data="digits", **begins[name])
        found = vitlab.study(OWN, recipe=recipe, epochs=2.0, seeds=1, dry_run=True, host=HOST)
        assert [row.get("epochs") for row in found["rows"]] == [2.0] * 3
        assert recipe.lasting(2.0).schedule.warmup == pytest.approx(2 * warmup)


def test_options_of_the_recipe_are_keywords_as_elsewhere() -> None:
    how: dict[str, Any] = {"epochs": 1.0, "seeds": 1, "dry_run": True, "host": HOST}
    bases = list[Base]()

    def alone(base: Base) -> tuple[Arm, ...]:
        bases.append(base)
        return (Arm("alone", base.recipe, ("alone",)),)

    own = Study("Own", "nobody", ("arm",), alone, (ACCURACY,))
    vitlab.study(own, **how, image_size=16, model=TINY, batch=32)
    vitlab.study(own, **how, recipe=BASE, image_size=16)
    assert [each.image_size for each in bases] == [16, 16]
    assert (bases[0].recipe.model.model, bases[0].recipe.batch) == (TINY, 32)
    with pytest.raises(OptionError, match="unknown option 'image_sizes': did you mean image_size"):
        vitlab.study(OWN, **how, image_sizes=16)
    with pytest.raises(OptionError, match="optimizers chooses betas itself: leave it out"):
        vitlab.study("optimizers", **how, betas=(0.9, 0.9))
    with pytest.raises(OptionError, match="steps differs from row to row: set epochs"):
        vitlab.study("optimizers", **how, steps=5)


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OptionError, match="unknown row 'godo': did you mean good"):
        run(out, only=["godo"])
    with pytest.raises(OptionError, match=r'need budget="\d+m?s?": set it, or fewer seeds='):
        run(out, epochs=0, budget="3s")
    with pytest.raises(OptionError, match="exclude each other"):
        run(out, budget="3s")
    with pytest.raises(OptionError, match="unknown study 'nothing'"):
        run(out, "nothing")
    assert not out.exists()
    dry = run(out, dry_run=True)
    assert (dry["runs"], dry["epochs"], dry["seconds"] > 0) == (3, 0.1, True)
    assert list(tmp_path.iterdir()) == []


MEASURED: list[str] = []


def noted(trained: Trained) -> dict[str, float]:
    """Measure nothing; note which run is there."""
    MEASURED.append(trained.folder.name)
    return {}


def test_one_row_is_timed_and_none_where_the_length_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "timed", timed)

    def rows(base: Base) -> tuple[Arm, ...]:
        return (
            Arm("start", base.recipe, ("start",), row=False),
            Arm("own", base.recipe, ("own",)),
            Arm("late", fine_tuning(base), ("late",), after="start"),
        )

    what = Study("Timed", "nobody", ("arm",), rows, (ACCURACY,), noted)
    MEASURED.clear()
    with monkeypatch.context() as patch:
        clock = SlowClock(patch, 0.0)

        def tick(trainer: Trainer, state: RunState, batch: Batch) -> None:
            clock.ahead += 0.02

        words = r'^3 runs of .* need budget="\w+": set it, or fewer seeds='
        with each_step(after=tick), pytest.raises(OptionError, match=words):
            run(tmp_path / "out", what, epochs=0, budget="1s")
    assert MEASURED == ["own-seed-0-0"]
    dry = run(tmp_path / "out", what, dry_run=True)
    assert dry["seconds"] > 0
    assert len(MEASURED) <= 2
    MEASURED.clear()
    capsys.readouterr()
    result = run(tmp_path / "out", what)
    assert MEASURED == ["own-seed-0", "late-seed-0"]
    assert "timing" not in (said := capsys.readouterr().err)
    assert "multiply-adds, with 1 at once" in said
    assert result["predicted_seconds"] is None
    assert result["seconds"] > 0


def test_a_refusal_of_the_first_run_leaves_nothing(tmp_path: Path) -> None:
    """Here nothing is timed before."""

    def refused(base: Base) -> tuple[Arm, ...]:
        return (Arm("one", base.recipe.changed(classes=3), ("one",)),)

    study = Study("Own", "nobody", ("arm",), refused, (ACCURACY, NLL))
    with pytest.raises(OptionError, match="classes=3, but digits has 10 classes"):
        run(tmp_path / "made" / "out", study)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(out, only=["good"], epochs=0.05)
    with pytest.raises(RunError, match=r"was started with budget=0.0, not 600.0: leave"):
        run(out, only=["good"], epochs=0)
    with pytest.raises(RunError, match="lr_grid"):
        run(out, only=["good"], epochs=0.05, lr_grid=(1.0, 2.0))
    with pytest.raises(RunError, match="choose another out="):
        run(out, "positions", only=["none"])
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="exists and contains no study"):
        run(other)
    with pytest.raises(DiskError):
        run(Path("/proc/out"))
    assert [file.name for file in other.iterdir()] == ["mine.txt"]


def test_what_was_never_planned_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves a folder that was begun, and runs that were being timed."""
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_give_way", lambda *_: None)
        patched.setattr(engine, "timed", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(out, only=["good"], epochs=0, budget="1h")
    (out / "vitlab-timing-dead" / "run").mkdir(parents=True)
    run(out, only=["good"], epochs=0.1)
    assert not (out / "vitlab-timing-dead").exists()
    (out / "plan.json").unlink()
    with pytest.raises(RunError, match=r"plan.json is missing: choose another out="):
        run(out, only=["good"], epochs=0.1)
    assert (out / "campaign.json").exists()


def test_cells() -> None:
    study, row = OWN, {"mean": {"accuracy": 0.5}, "std": {"accuracy": 0.012}, "diverged": 1}
    assert cell_text(row, ACCURACY) == "50.0% ± 1.2"
    assert cell_text(row, NLL) == "diverged"
    assert cell_text(row | {"diverged": 0}, NLL) == ""
    counts = [lost({"seeds": [0, 1, 2], "diverged": count}) for count in (0, 1, 3)]
    assert counts == ["", " (2 of 3 runs)", ""]
    assert rows_of(study, (), (), {}) == []
    assert markdown(("a", "b"), [("1|2", "")]) == "| a | b |\n| --- | --- |\n| 1\\|2 |  |\n"
