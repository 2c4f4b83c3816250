"""Runs of a few steps that find what an arm costs on this device."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from vitlab.recipes.recipe import Host
from vitlab.studies.grid.design import Arm, Measure
from vitlab.studies.grid.jobs import Figures, Job, with_needed
from vitlab.studies.grid.runs.one_run import Work
from vitlab.studies.grid.runs.run_pool import Workers
from vitlab.studies.grid.runs.study_plan import Cost

STEPS = 9  # the first two are not timed
FREE = {"optimizer": ("lr", "weight_decay", "betas", "momentum", "eps"), "recipe": ("epochs",)}


def costs_of(
    arms: Sequence[Arm],
    measure: Measure | None,
    workers: Workers,
    host: Host,
    downstream: str = "",
) -> dict[str, Cost]:
    """Return the cost of a run of each arm, found by a run of a few steps in a temporary folder.

    Arms that differ only in what costs nothing, such as a learning rate, share one.

    Args:
        arms: of the study
        measure: what is measured of each row's model
        workers: who run them, as many at once as later
        host: where to train
        downstream: data that pre-trained models are transferred to

    Raises:
        UserError: as `vitlab.train`: what would be refused later is refused here.
    """
    kinds = {arm.name: _kind(arm) for arm in arms}
    first = {kind: name for name, kind in reversed(kinds.items())}
    needed = with_needed(first.values(), {arm.name: arm for arm in arms})
    with TemporaryDirectory(prefix="vitlab-study-") as place:
        folder = Path(place)

        def work_of(job: Job) -> Work:
            recipe = job.arm.recipe.changed(steps=STEPS, **job.given(folder))
            own = measure if job.arm.row else None
            return Work(
                recipe, folder / job.name, own, host, "", folder / "log.txt", True, downstream
            )

        wanted = [arm for arm in arms if arm.name in needed]
        jobs = [Job(arm.name, arm, 0, 0.0, arm.after, arm.guide) for arm in wanted]
        found = {job.name: figures for job, figures in workers.all(jobs, {}, work_of)}
    batches = {arm.name: arm.recipe.batch for arm in arms}
    return {name: _cost(found[first[kind]], batches[name]) for name, kind in kinds.items()}


def _cost(found: Figures, batch: int) -> Cost:
    step, steps = found.get("step_seconds", 0.0), found.get("epoch_steps", 1.0)
    fixed = max(found.get("elapsed", 0.0) - STEPS * step, 0.0)
    return Cost(fixed, step * steps, steps, found.get("step_macs", 0.0) * batch * steps)


def _kind(arm: Arm) -> str:
    """Return what the cost of an arm depends on."""
    tables = arm.recipe.as_tables()
    for table, names in FREE.items():
        for name in names:
            tables[table].pop(name, None)
    return f"{tables} {arm.after} {arm.guide} {arm.row}"
