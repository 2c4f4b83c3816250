"""Runs, their order, their length within a budget, and what they cost, against a simulation."""

import heapq
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from vitlab.errors import OptionError, RunError
from vitlab.studies.base import small
from vitlab.studies.design import Arm
from vitlab.studies.jobs import Job, best_of, beyond, chosen_arms, edge_of, jobs_of, tried
from vitlab.studies.plan import LEAST, Cost, Plan, makespan, planned, rounded, steps_of
from vitlab.units import seconds

RECIPE = small("digits")


def arm(name: str, epochs: float = 1.0, **fields: object) -> Arm:
    return Arm(name, RECIPE.lasting(epochs), **fields)  # type: ignore[arg-type]


CHAIN = (arm("pre", row=False), arm("tune", after="pre", rates=(3.0, 1.0)), arm("scratch"))


def test_jobs_have_names_needs_and_an_order() -> None:
    jobs = {job.name: job for job in jobs_of(CHAIN, (4, 5))}
    assert list(jobs) == [
        "pre-seed-4", "pre-seed-5", "tune-lr-1", "tune-lr-3", "tune-lr-further-1",
        "tune-lr-further-2", "tune-lr-further-3", "tune-seed-4", "tune-seed-5",
        "scratch-seed-4", "scratch-seed-5",
    ]  # fmt: skip
    assert jobs["tune-lr-3"].needs == ("pre-seed-4",)
    assert jobs["tune-lr-further-1"].needs == ("tune-lr-1", "tune-lr-3", "pre-seed-4")
    assert jobs["tune-seed-5"].needs == (*list(jobs)[2:7], "pre-seed-5")
    assert jobs["scratch-seed-4"].needs == ()


def test_a_search_holds_images_out_and_the_last_run_has_the_best_rate() -> None:
    jobs = {job.name: job for job in jobs_of(CHAIN, (4, 5))}
    search = jobs["tune-lr-3"].recipe({}, 2.0, Path("there"))
    assert (search.data.dev_share, search.seed, search.start.weights) == (
        0.1,
        4,
        str(Path("there", "pre-seed-4")),
    )
    assert search.optimizer.lr == pytest.approx(3 * RECIPE.optimizer.lr)
    done = {
        "tune-lr-1": {"accuracy": 0.4, "rate": 1.0},
        "tune-lr-3": {"accuracy": 0.6, "rate": 3.0},
    }
    further = jobs["tune-lr-further-1"].recipe(done, 2.0, Path("there"))
    assert further.data.dev_share == 0.1
    assert further.optimizer.lr == pytest.approx(9 * RECIPE.optimizer.lr)
    done["tune-lr-further-1"] = {"diverged": "at once", "rate": 9.0}
    assert jobs["tune-lr-further-2"].factor(done) == 0  # 3 is inside now
    done |= {"tune-lr-further-2": {}, "tune-lr-further-3": {}}
    last = jobs["tune-seed-5"].recipe(done, 2.0, Path("there"))
    assert (last.data.dev_share, last.seed, last.epochs) == (0.0, 5, 2.0)
    assert last.optimizer.lr == pytest.approx(3 * RECIPE.optimizer.lr)


@pytest.mark.parametrize(
    ("first", "second", "factor"),
    [
        ({"accuracy": 0.5}, {"accuracy": 0.5}, 1.0),  # ties go to the smallest
        ({"accuracy": 0.5}, {"diverged": "at once"}, 1.0),
        ({"diverged": "at once"}, {"accuracy": 0.1}, 3.0),
        ({"diverged": "at once"}, {"diverged": "at once"}, 1.0),
    ],
)
def test_the_choice(first: dict[str, float], second: dict[str, float], factor: float) -> None:
    done = {"a": first | {"rate": 1.0}, "b": second | {"rate": 3.0}}
    assert best_of(tried(("a", "b"), done)) == factor


def test_a_grid_grows_while_the_best_rate_is_at_its_edge() -> None:
    """By the factor between its last two; what is best inside, alone or not there does not grow."""
    assert beyond({0.3: 0.5, 1.0: 0.4, 3.0: 0.3}) == pytest.approx(0.09)
    assert beyond({0.3: 0.3, 1.0: 0.4, 3.0: 0.5}) == pytest.approx(9.0)
    assert [edge_of(each) for each in ({1.0: 0.2, 2.0: 0.3, 3.0: 0.1}, {1.0: 0.2}, {})] == [0, 0, 0]
    assert [beyond(each) for each in ({1.0: 0.2, 2.0: 0.3, 3.0: 0.1}, {1.0: 0.2}, {})] == [0, 0, 0]
    assert edge_of({1.0: -1.0, 2.0: -1.0}) == -1  # all diverged
    jobs = jobs_of((arm("one", rates=(1.0, 3.0)),), (0,))
    done: dict[str, dict[str, float]] = {}
    for job in jobs[:-1]:  # the higher the better: three further rates, and no more
        rate = job.factor(done)
        done[job.name] = {"accuracy": rate / 100, "rate": rate}
    assert jobs[-1].factor(done) == pytest.approx(81)
    assert edge_of(tried(jobs[-1].choices, done)) == 1


def test_the_users_rates_are_not_searched_for_a_row_with_a_single_one() -> None:
    arms = (arm("tuned"), arm("none", rates=(1.0,)))
    assert [job.name for job in jobs_of(arms, (0,), (1.0, 3.0), further=0)] == [
        "tuned-lr-1", "tuned-lr-3", "tuned-seed-0", "none-seed-0",
    ]  # fmt: skip
    with pytest.raises(OptionError, match="leaves nothing to choose"):
        jobs_of(arms, (0,), (3.0,))


def test_a_length_is_taken_as_it_is() -> None:
    (job,) = jobs_of((arm("one"),), (0,))
    assert job.recipe({}, 1.2345, Path()).epochs == 1.2345
    assert jobs_of((arm("third", 1 / 3),), (0,))[0].recipe({}, 3.0, Path()).epochs == 1.0


def test_rows_bring_what_they_start_from() -> None:
    assert [each.name for each in chosen_arms(CHAIN, ["tune"])] == ["pre", "tune"]
    with pytest.raises(OptionError, match="unknown row 'tunes': did you mean tune"):
        chosen_arms(CHAIN, ["tunes"])
    with pytest.raises(OptionError, match="'pre'"):
        chosen_arms(CHAIN, ["pre"])
    with pytest.raises(OptionError, match="late"):
        jobs_of((arm("early", after="late"), arm("late")), (0,))
    with pytest.raises(OptionError, match="there twice"):
        jobs_of((arm("one"), arm("one")), (0,))


def test_rounding_down_keeps_two_digits() -> None:
    for value in np.random.default_rng(0).lognormal(1, 3, 300):
        found = rounded(value, math.floor)
        assert float(f"{found:.1e}") == found
        assert found <= value * (1 + 1e-9) < found * 1.11
    assert [rounded(each, math.floor) for each in (1.0, 9.99, 99.9, 300.0, 0.029)] == [
        1.0, 9.9, 99.0, 300.0, 0.029,
    ]  # fmt: skip


def simulated(jobs: Sequence[Job], took: dict[str, float], at_once: int) -> float:
    """The time that `Workers.all` takes, event by event: it starts what it can, then waits."""
    waiting, done = list(jobs), set[str]()
    running: list[tuple[float, str]] = []
    now = 0.0
    while waiting or running:
        for job in [job for job in waiting if set(job.needs) <= done][: at_once - len(running)]:
            waiting.remove(job)
            heapq.heappush(running, (now + took[job.name], job.name))
        now, name = heapq.heappop(running)
        done.add(name)
        while running and running[0][0] == now:
            done.add(heapq.heappop(running)[1])
    return now


@pytest.mark.parametrize("at_once", [1, 2, 3, 5])
def test_makespan_is_that_of_a_simulation(at_once: int) -> None:
    generator = np.random.default_rng(at_once)
    for _ in range(40):
        arms = list[Arm]()
        for number in range(int(generator.integers(1, 7))):
            after = f"{generator.integers(number)}" if number and generator.random() < 0.5 else ""
            rates = (1.0, 2.0) if generator.random() < 0.3 else ()
            arms.append(arm(str(number), float(generator.integers(1, 4)), after=after, rates=rates))
        jobs = jobs_of(arms, range(int(generator.integers(1, 4))))
        costs = {
            each.name: Cost(*generator.integers(1, 9, 3), 1.0, generator.integers(9))
            for each in arms
        }
        took = {}
        for job in jobs:  # those that choose a rate are not measured
            cost = costs[job.arm.name]
            measure = 0 if "-lr-" in job.name else cost.measure
            took[job.name] = cost.fixed + measure + cost.step * steps_of(job, cost, 2.0)
        assert makespan(jobs, costs, at_once, 2.0) == pytest.approx(simulated(jobs, took, at_once))


def test_what_is_done_takes_no_time() -> None:
    jobs = jobs_of(CHAIN, (0,), further=0)
    costs = {each.name: Cost(1.0, 0.1, 10.0, 5.0) for each in CHAIN}
    plan = Plan(2.0, costs)
    assert plan.seconds(jobs, 1) == pytest.approx(1.0 * 5 + 0.1 * 20 * (3 + 2 * 0.9))
    assert plan.seconds(jobs, 1, {job.name for job in jobs[:-1]}) == pytest.approx(3.0)
    assert plan.seconds(jobs, 1, {job.name for job in jobs}) == 0.0
    assert plan.macs(jobs) == pytest.approx(5.0 * 20 * (3 + 2 * 0.9))


def test_a_plan_fills_its_budget_and_no_more() -> None:
    jobs = jobs_of(CHAIN, (0, 1, 2))
    costs = {each.name: Cost(1.0, 0.05, 22.5, 1e6) for each in CHAIN}
    for budget in (200.0, 500.0, 1500.0):
        plan = planned(jobs, costs, 2, seconds=budget, timing=7.0)
        took = plan.timing + plan.seconds(jobs, 2)
        assert 0.85 * budget < took <= budget
    assert planned(jobs, costs, 2, seconds=1e9).epochs == 300.0
    assert planned(jobs, costs, 2, epochs=0.123).epochs == 0.123


def test_a_budget_that_is_too_small_is_refused_with_one_that_is_not() -> None:
    jobs = jobs_of(CHAIN, (0, 1, 2))
    costs = {each.name: Cost(1.0, 0.05, 22.5, 1e6) for each in CHAIN}
    with pytest.raises(OptionError, match="14 runs of at least 20 steps need --budget") as error:
        planned(jobs, costs, 2, seconds=12.0, timing=7.0)
    found = re.search(r"--budget (\w+):", str(error.value))
    assert found is not None
    plan = planned(jobs, costs, 2, seconds=seconds(found[1]), timing=8.0)
    assert min(steps_of(job, costs[job.arm.name], plan.epochs) for job in jobs) >= LEAST


def test_a_plan_is_kept(tmp_path: Path) -> None:
    plan = Plan(1.5, {"a": Cost(1.0, 2.0, 3.0, 4.0)}, 5.0)
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    for text in ("", "[]", '{"epochs": 1}', json.dumps(asdict(plan) | {"costs": [1]})):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(RunError, match="choose another --out"):
            Plan.read(tmp_path / "plan.json")
