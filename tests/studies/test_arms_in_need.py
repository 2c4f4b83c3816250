"""Arms that need the models of others, and arms whose length is given in multiply-adds."""

from pathlib import Path

import pytest

from vitlab.errors import OptionError
from vitlab.recipes.named import recipe
from vitlab.studies.design import Arm
from vitlab.studies.jobs import chosen_arms, jobs_of
from vitlab.studies.plan import Cost, unit_of, with_lengths

PLAIN = recipe("digits", epochs=1.0, warmup=0.1)
CODES = Arm("codes", recipe("tokenizer"), row=False)
BEFORE = Arm("before", recipe("beit"), guide="codes", row=False)
TUNED = Arm("tuned", PLAIN, after="before")
TAUGHT = Arm("taught", PLAIN, guide="teacher")
ARMS = (CODES, BEFORE, TUNED, Arm("teacher", PLAIN), TAUGHT)


def test_what_is_learned_from_is_trained_once() -> None:
    jobs = {job.name: job for job in jobs_of(ARMS, (3, 4))}
    assert [name for name in jobs if name.startswith("codes")] == ["codes-seed-3"]
    assert [name for name in jobs if name.startswith("before")] == [
        "before-seed-3",
        "before-seed-4",
    ]
    assert jobs["before-seed-4"].models == ("codes-seed-3",)
    assert jobs["tuned-seed-4"].models == ("before-seed-4",)
    place = Path("runs")
    assert jobs["before-seed-4"].given(place) == {"tokenizer": str(place / "codes-seed-3")}
    assert jobs["tuned-seed-4"].given(place) == {"weights": str(place / "before-seed-4")}
    assert jobs["taught-seed-4"].given(place) == {"teacher": str(place / "teacher-seed-3")}


def test_rows_bring_what_they_need() -> None:
    assert [arm.name for arm in chosen_arms(ARMS, ["tuned"])] == ["codes", "before", "tuned"]
    assert [arm.name for arm in chosen_arms(ARMS, ["taught"])] == ["teacher", "taught"]
    with pytest.raises(OptionError, match="codes"):
        jobs_of((BEFORE,), (0,))


def test_equal_computation() -> None:
    """Epochs are inversely proportional to the multiply-adds of one."""
    arms = (Arm("free", PLAIN), Arm("first", PLAIN, macs=2.0), Arm("cheap", PLAIN, macs=2.0))
    costs = {"free": 7.0, "first": 10.0, "cheap": 2.5}
    known = {name: Cost(1.0, 1.0, 10.0, macs / 10) for name, macs in costs.items()}
    found = {arm.name: arm.recipe for arm in with_lengths(arms, known, unit_of(arms, known))}
    assert found["free"] == PLAIN
    assert (found["first"].epochs, found["cheap"].epochs) == (2.0, 8.0)
    assert found["cheap"].schedule.warmup == pytest.approx(0.8)
