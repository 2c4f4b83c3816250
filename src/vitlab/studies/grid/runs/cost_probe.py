"""Runs of a few steps that find what an arm costs on this device."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitlab.recipes.recipe import Host
from vitlab.studies.grid.design import Arm, Measure
from vitlab.studies.grid.jobs import Figures, Job, with_needed
from vitlab.studies.grid.runs.one_run import Work
from vitlab.studies.grid.runs.run_pool import FAILED, Workers
from vitlab.studies.grid.runs.study_plan import Cost

STEPS, WARM = 9, 3  # the first two are not timed
FREE = {"optimizer": ("lr", "weight_decay", "betas", "momentum", "eps"), "recipe": ("epochs",)}


def costs_of(
    arms: Sequence[Arm],
    measure: Measure | None,
    workers: Workers,
    host: Host,
    place: Path,
    downstream: str = "",
) -> dict[str, Cost]:
    """Return the cost of a run of each arm, found by one of a few steps.

    The first run in a process takes longer, and is repeated. Arms that differ only in what
    costs nothing, such as a learning rate, share one.

    Args:
        arms: of the study
        measure: what is measured of each row's model
        workers: who run them, as many at once as later
        host: where to train
        place: an empty folder for the runs
        downstream: data that pre-trained models are transferred to

    Raises:
        UserError: as `vitlab.train`: what would be refused later is refused here.
    """
    kinds = {arm.name: _kind(arm) for arm in arms}
    first = {kind: name for name, kind in reversed(kinds.items())}
    needed = with_needed(first.values(), {arm.name: arm for arm in arms})

    def work_of(job: Job) -> Work:
        counted = job.name == job.arm.name
        recipe = job.arm.recipe.changed(steps=STEPS if counted else WARM, **job.given(place))
        own = measure if job.arm.row and counted else None
        log = place / "log.txt"
        return Work(recipe, place / job.name, own, host, "", log, counted, downstream)

    warm = [Job(f"warm-{number}", arms[0], 0) for number in range(workers.at_once)]
    wanted = [arm for arm in arms if arm.name in needed]
    jobs = [Job(arm.name, arm, 0, 0.0, arm.after, arm.guide) for arm in wanted]
    for _ in workers.all(warm, {}, work_of):
        pass
    found = {job.name: figures for job, figures in workers.all(jobs, {}, work_of)}
    batches = {arm.name: arm.recipe.batch for arm in arms}
    return {name: _cost(name, found[first[kind]], batches) for name, kind in kinds.items()}


def _cost(name: str, found: Figures, batches: Mapping[str, int]) -> Cost:
    if FAILED in found:  # within a few steps: it will cost next to nothing
        return Cost(found.get("elapsed", 0.0), 0.0, 1.0, 0.0)
    step, measure = found.get("step_seconds", 0.0), found.get("measure_seconds", 0.0)
    fixed = max(found.get("elapsed", 0.0) - STEPS * step - measure, 0.0)
    steps, macs = found.get("epoch_steps", 1.0), found.get("step_macs", 0.0)
    return Cost(fixed, step, steps, macs * batches[name], measure)


def _kind(arm: Arm) -> str:
    """Return what the cost of an arm depends on."""
    tables = arm.recipe.as_tables()
    for table, names in FREE.items():
        for name in names:
            tables[table].pop(name, None)
    return f"{tables} {arm.after} {arm.guide} {arm.row}"
