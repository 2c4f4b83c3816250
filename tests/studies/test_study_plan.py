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
from vitlab.experiments.cells import Cell
from vitlab.experiments.timing import LEAST, Plan, RunCost, rounded
from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import small
from vitlab.studies.design import Arm
from vitlab.studies.grid import best_of, beyond, cells_of, chosen_arms, edge_of, tried
from vitlab.units import seconds

RECIPE = small("digits")


def arm(name: str, epochs: float = 1.0, **fields: object) -> Arm:
    return Arm(name, RECIPE.lasting(epochs), **fields)  # type: ignore[arg-type]


THERE = Path("there")


def settled(cell: Cell, *rows: dict[str, object]) -> Cell | None:
    return cell.settle(cell, list(rows)) if cell.settle else cell


def recipe_of(cell: Cell, *rows: dict[str, object]) -> Recipe:
    found = settled(cell, *rows)
    assert found is not None
    return found.recipe


CHAIN = (arm("pre", row=False), arm("tune", after="pre", rates=(3.0, 1.0)), arm("scratch"))


def test_cells_have_names_needs_and_an_order() -> None:
    cells = {cell.name: cell for cell in cells_of(CHAIN, (4, 5), THERE)}
    assert list(cells) == [
        "pre-seed-4", "pre-seed-5", "tune-lr-1", "tune-lr-3", "tune-lr-further-1",
        "tune-lr-further-2", "tune-lr-further-3", "tune-seed-4", "tune-seed-5",
        "scratch-seed-4", "scratch-seed-5",
    ]  # fmt: skip
    assert cells["tune-lr-3"].after == cells["tune-lr-3"].models == ("pre-seed-4",)
    assert cells["tune-lr-further-1"].after == ("tune-lr-1", "tune-lr-3", "pre-seed-4")
    assert cells["tune-seed-5"].after == (*list(cells)[2:7], "pre-seed-5")
    assert cells["tune-seed-5"].models == ("pre-seed-5",)
    assert cells["scratch-seed-4"].after == ()
    assert all(cell.may_diverge for cell in cells.values())


def test_a_search_holds_images_out_and_the_last_run_has_the_best_rate() -> None:
    cells = {cell.name: cell for cell in cells_of(CHAIN, (4, 5), THERE, epochs=2.0)}
    search = recipe_of(cells["tune-lr-3"])
    assert (search.data.dev_share, search.seed, search.start.weights) == (
        0.1,
        4,
        str(THERE / "pre-seed-4"),
    )
    assert search.optimizer.lr == pytest.approx(3 * RECIPE.optimizer.lr)
    rows: list[dict[str, object]] = [{"accuracy": 0.4, "rate": 1.0}, {"accuracy": 0.6, "rate": 3.0}]
    further = recipe_of(cells["tune-lr-further-1"], *rows)
    assert further.data.dev_share == 0.1
    assert further.optimizer.lr == pytest.approx(9 * RECIPE.optimizer.lr)
    rows.append({"diverged": "at once", "rate": 9.0})
    assert settled(cells["tune-lr-further-2"], *rows) is None  # 3 is inside now
    last = recipe_of(cells["tune-seed-5"], *rows, {}, {}, {"accuracy": 0.9})
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
    assert best_of(tried([first | {"rate": 1.0}, second | {"rate": 3.0}])) == factor


def test_a_grid_grows_while_the_best_rate_is_at_its_edge() -> None:
    """By the factor between its last two; what is best inside, alone or not there does not grow."""
    assert beyond({0.3: 0.5, 1.0: 0.4, 3.0: 0.3}) == pytest.approx(0.09)
    assert beyond({0.3: 0.3, 1.0: 0.4, 3.0: 0.5}) == pytest.approx(9.0)
    assert [edge_of(each) for each in ({1.0: 0.2, 2.0: 0.3, 3.0: 0.1}, {1.0: 0.2}, {})] == [0, 0, 0]
    assert [beyond(each) for each in ({1.0: 0.2, 2.0: 0.3, 3.0: 0.1}, {1.0: 0.2}, {})] == [0, 0, 0]
    assert edge_of({1.0: -1.0, 2.0: -1.0}) == -1  # all diverged
    cells = cells_of((arm("one", rates=(1.0, 3.0)),), (0,), THERE)
    rows = list[dict[str, object]]()
    for cell in cells[:-1]:  # the higher the better: three further rates, and no more
        known = settled(cell, *rows)
        assert known is not None
        rows.append({"accuracy": known.labels["rate"] / 100, "rate": known.labels["rate"]})
    assert recipe_of(cells[-1], *rows).optimizer.lr == pytest.approx(81 * RECIPE.optimizer.lr)
    assert edge_of(tried(rows)) == 1


def test_the_users_rates_are_not_searched_for_a_row_with_a_single_one() -> None:
    arms = (arm("tuned"), arm("none", rates=(1.0,)))
    found = cells_of(arms, (0,), THERE, rates=(1.0, 3.0), further=0)
    assert [cell.name for cell in found] == [
        "tuned-lr-1", "tuned-lr-3", "tuned-seed-0", "none-seed-0",
    ]  # fmt: skip
    with pytest.raises(OptionError, match="leaves nothing to choose"):
        cells_of(arms, (0,), THERE, rates=(3.0,))


def test_a_length_is_taken_as_it_is() -> None:
    (one,) = cells_of((arm("one"),), (0,), THERE, epochs=1.2345)
    assert one.recipe.epochs == 1.2345
    (third,) = cells_of((arm("third", 1 / 3),), (0,), THERE, epochs=3.0)
    assert third.recipe.epochs == 1.0


def test_rows_bring_what_they_start_from() -> None:
    assert [each.name for each in chosen_arms(CHAIN, ["tune"])] == ["pre", "tune"]
    with pytest.raises(OptionError, match="unknown row 'tunes': did you mean tune"):
        chosen_arms(CHAIN, ["tunes"])
    with pytest.raises(OptionError, match="'pre'"):
        chosen_arms(CHAIN, ["pre"])
    with pytest.raises(OptionError, match="late"):
        cells_of((arm("early", after="late"), arm("late")), (0,), THERE)
    with pytest.raises(OptionError, match="there twice"):
        cells_of((arm("one"), arm("one")), (0,), THERE)


def test_rounding_down_keeps_two_digits() -> None:
    for value in np.random.default_rng(0).lognormal(1, 3, 300):
        found = rounded(value, math.floor)
        assert float(f"{found:.1e}") == found
        assert found <= value * (1 + 1e-9) < found * 1.11
    assert [rounded(each, math.floor) for each in (1.0, 9.99, 99.9, 300.0, 0.029)] == [
        1.0, 9.9, 99.0, 300.0, 0.029,
    ]  # fmt: skip


def simulated(cells: Sequence[Cell], took: dict[str, float], at_once: int) -> float:
    """The time that `run_cells` takes, event by event: it starts what it can, then waits."""
    waiting, done = list(cells), set[str]()
    running: list[tuple[float, str]] = []
    now = 0.0
    while waiting or running:
        ready = [cell for cell in waiting if set(cell.after) <= done]
        for cell in ready[: at_once - len(running)]:
            waiting.remove(cell)
            heapq.heappush(running, (now + took[cell.name], cell.name))
        now, name = heapq.heappop(running)
        done.add(name)
        while running and running[0][0] == now:
            done.add(heapq.heappop(running)[1])
    return now


@pytest.mark.parametrize("at_once", [1, 3])
def test_makespan_is_that_of_a_simulation(at_once: int) -> None:
    generator = np.random.default_rng(at_once)
    for _ in range(12):
        arms = list[Arm]()
        for number in range(int(generator.integers(1, 7))):
            after = f"{generator.integers(number)}" if number and generator.random() < 0.5 else ""
            rates = (1.0, 2.0) if generator.random() < 0.3 else ()
            arms.append(arm(str(number), float(generator.integers(1, 4)), after=after, rates=rates))
        cells = cells_of(arms, range(int(generator.integers(1, 4))), THERE)
        costs = {
            each.name: RunCost(*generator.integers(1, 9, 3), 1.0, generator.integers(9))
            for each in arms
        }
        took = {}
        for cell in cells:  # those that choose a rate are not measured, and hold a tenth out
            cost, search = costs[cell.kind], "-lr-" in cell.name
            steps = cell.recipe.epochs * 2.0 * cost.steps * (0.9 if search else 1)
            took[cell.name] = cost.fixed + (0 if search else cost.measure) + cost.step * steps
        expected = simulated(cells, took, at_once)
        assert Plan(2.0, costs).seconds(cells, at_once) == pytest.approx(expected)


def test_what_is_done_takes_no_time() -> None:
    jobs = cells_of(CHAIN, (0,), THERE, further=0)
    costs = {each.name: RunCost(1.0, 0.1, 10.0, 5.0) for each in CHAIN}
    plan = Plan(2.0, costs)
    assert plan.seconds(jobs, 1) == pytest.approx(1.0 * 5 + 0.1 * 20 * (3 + 2 * 0.9))
    assert plan.seconds(jobs, 1, {job.name for job in jobs[:-1]}) == pytest.approx(3.0)
    assert plan.seconds(jobs, 1, {job.name for job in jobs}) == 0.0
    assert plan.macs(jobs) == pytest.approx(5.0 * 20 * (3 + 2 * 0.9))


def test_a_plan_fills_its_budget_and_no_more() -> None:
    jobs = cells_of(CHAIN, (0, 1, 2), THERE)
    costs = {each.name: RunCost(1.0, 0.05, 22.5, 1e6) for each in CHAIN}
    for budget in (200.0, 500.0, 1500.0):
        plan = Plan(0.0, costs, 7.0).within(budget, jobs, 2)
        took = plan.timing + plan.seconds(jobs, 2)
        assert 0.85 * budget < took <= budget
    assert Plan(0.0, costs).within(1e9, jobs, 2).epochs == 300.0


def test_a_budget_that_is_too_small_is_refused_with_one_that_is_not() -> None:
    jobs = cells_of(CHAIN, (0, 1, 2), THERE)
    costs = {each.name: RunCost(1.0, 0.05, 22.5, 1e6) for each in CHAIN}
    with pytest.raises(OptionError, match="14 runs of at least 20 steps need --budget") as error:
        Plan(0.0, costs, 7.0).within(12.0, jobs, 2)
    found = re.search(r"--budget (\w+):", str(error.value))
    assert found is not None
    plan = Plan(0.0, costs, 8.0).within(seconds(found[1]), jobs, 2)
    assert min(costs[job.kind].steps_of(job, plan.epochs) for job in jobs) >= LEAST


def test_a_plan_is_kept(tmp_path: Path) -> None:
    plan = Plan(1.5, {"a": RunCost(1.0, 2.0, 3.0, 4.0)}, 5.0)
    assert Plan.kept(tmp_path / "plan.json") is None
    (tmp_path / "plan.json").write_text(json.dumps(asdict(plan)))
    assert Plan.kept(tmp_path / "plan.json") == plan
    old = {"fixed": 1.0, "step": 2.0, "steps": 3.0, "macs": 4.0, "measure": 0.0}  # of before tests
    (tmp_path / "plan.json").write_text(json.dumps(asdict(plan) | {"costs": {"a": old}}))
    assert Plan.kept(tmp_path / "plan.json") == plan
    for text in ("", "[]", '{"epochs": 1}', json.dumps(asdict(plan) | {"costs": [1]})):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(RunError, match="choose another --out"):
            Plan.kept(tmp_path / "plan.json")
