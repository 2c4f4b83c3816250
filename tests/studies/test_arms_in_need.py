"""Arms that need the models of others, and arms whose length is given in multiply-adds."""

from pathlib import Path

import pytest

from vitlab.errors import OptionError
from vitlab.experiments.timing import Cost, Plan
from vitlab.recipes.named import recipe
from vitlab.studies.design import Arm
from vitlab.studies.grid import cells_of, chosen_arms
from vitlab.studies.study import unit_of, with_lengths

PLAIN = recipe("digits", epochs=1.0, warmup=0.1)
CODES = Arm("codes", recipe("tokenizer"), row=False)
BEFORE = Arm("before", recipe("beit"), guide="codes", row=False)
TUNED = Arm("tuned", PLAIN, after="before")
TAUGHT = Arm("taught", PLAIN, guide="teacher")
ARMS = (CODES, BEFORE, TUNED, Arm("teacher", PLAIN), TAUGHT)


def test_what_is_learned_from_is_trained_once() -> None:
    place = Path("runs")
    cells = {cell.name: cell for cell in cells_of(ARMS, (3, 4), place)}
    assert [name for name in cells if name.startswith("codes")] == ["codes-seed-3"]
    assert [name for name in cells if name.startswith("before")] == [
        "before-seed-3",
        "before-seed-4",
    ]
    assert cells["before-seed-4"].models == ("codes-seed-3",)
    assert cells["tuned-seed-4"].models == ("before-seed-4",)
    recipes = {name: cell.recipe for name, cell in cells.items()}
    assert recipes["before-seed-4"].pretext.tokenizer == str(place / "codes-seed-3")
    assert recipes["tuned-seed-4"].start.weights == str(place / "before-seed-4")
    assert recipes["taught-seed-4"].distill.teacher == str(place / "teacher-seed-3")


def test_rows_bring_what_they_need() -> None:
    assert [arm.name for arm in chosen_arms(ARMS, ["tuned"])] == ["codes", "before", "tuned"]
    assert [arm.name for arm in chosen_arms(ARMS, ["taught"])] == ["teacher", "taught"]
    with pytest.raises(OptionError, match="codes"):
        cells_of((BEFORE,), (0,), Path())


def test_equal_computation() -> None:
    """Epochs are inversely proportional to the multiply-adds of one."""
    arms = (Arm("free", PLAIN), Arm("first", PLAIN, macs=2.0), Arm("cheap", PLAIN, macs=2.0))
    costs = {"free": 7.0, "first": 10.0, "cheap": 2.5}
    known = {name: Cost(1.0, 1.0, 10.0, macs / 10) for name, macs in costs.items()}
    plan = Plan(1.0, known, unit=unit_of(arms, known))
    found = {arm.name: arm.recipe for arm in with_lengths(arms, plan)}
    assert found["free"] == PLAIN
    assert (found["first"].epochs, found["cheap"].epochs) == (2.0, 8.0)
    assert found["cheap"].schedule.warmup == pytest.approx(0.8)
