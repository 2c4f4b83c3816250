"""What a run of each arm costs here: timed over a few steps, or counted for the papers' recipes."""

from collections.abc import Sequence
from dataclasses import replace

from vitlab.data.learning import splits_of
from vitlab.device import choose
from vitlab.measure.rates import device_rates
from vitlab.models.cost import cost
from vitlab.recipes.recipe import Host
from vitlab.studies.design import Arm, Measure
from vitlab.studies.jobs import FAILED, Figures, Job
from vitlab.studies.one_run import Work
from vitlab.studies.plan import Cost
from vitlab.studies.pool import Workers

STEPS, WARM = 9, 3  # of a timed run, the first two of which do not count; of one that makes ready
REACHED = 1 / 3  # of the rate of matrix products


def costs_of(
    arms: Sequence[Arm], measure: Measure | None, workers: Workers, work: Work
) -> dict[str, Cost]:
    """Return the cost of a run of each arm, found by one of a few steps.

    The first run in a process takes longer, and is repeated.

    Args:
        arms: of the study, each after those that it needs
        measure: what is measured of each row's model
        workers: who run them, as many at once as later
        work: where and how to train; its folder, an empty one, gets the runs

    Raises:
        UserError: as `vitlab.train`: what would be refused later is refused here.
    """

    def work_of(job: Job) -> Work:
        timed = job.name == job.arm.name
        return replace(
            work,
            recipe=job.arm.recipe.changed(steps=STEPS if timed else WARM, **job.given(work.folder)),
            folder=work.folder / job.name,
            measure=measure if job.arm.row and timed else None,
            counted=timed,
        )

    warm = [Job(f"warm-{n}", arms[0], 0) for n in range(workers.at_once)]
    for _ in workers.all(warm, {}, work_of):
        pass
    jobs = [Job(arm.name, arm, 0, 0.0, arm.after, arm.guide) for arm in arms]
    return {job.name: _timed(job.arm, found) for job, found in workers.all(jobs, {}, work_of)}


def _timed(arm: Arm, found: Figures) -> Cost:
    if FAILED in found:  # within a few steps: it will cost next to nothing
        return Cost(found.get("elapsed", 0.0), 0.0, 1.0, 0.0)
    step, measure = found.get("step_seconds", 0.0), found.get("measure_seconds", 0.0)
    fixed = max(found.get("elapsed", 0.0) - STEPS * step - measure, 0.0)
    macs = found.get("step_macs", 0.0) * arm.recipe.batch
    return Cost(fixed, step, found.get("epoch_steps", 1.0), macs, measure)


def counted_costs(arms: Sequence[Arm], host: Host) -> dict[str, Cost]:
    """Return the cost of a run of each arm: its multiply-adds at the rate of this device.

    A step of the papers' own recipes may take an hour. The backward pass counts twice. Testing is
    left out, and so is what a recipe saves by hiding patches. The rate is that of large matrix
    products, a third of which training reaches.

    Args:
        arms: of the study, each after the arm it starts from
        host: where to train

    Raises:
        UserError: data that cannot be opened, or a model that cannot be built.
    """
    precision = "fp32" if choose(host.device).type == "cpu" else "bf16"
    pace = REACHED * device_rates(host.device).of(precision) / 2
    macs, found = dict[str, float](), dict[str, Cost]()
    for arm in arms:  # without a model of its own it has that of the arm before
        own = arm.recipe.model.model and cost(arm.recipe.model.config(classes=10)).macs
        macs[arm.name] = own or macs[arm.after or arm.guide]
        step = 3 * macs[arm.name] * arm.recipe.batch
        steps = len(splits_of(arm.recipe.data).train) / arm.recipe.batch
        found[arm.name] = Cost(0.0, step / pace, steps, step)
    return found
