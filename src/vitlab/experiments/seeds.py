"""`vitlab.repeat`: the same training with several seeds, perhaps with the rate of a sweep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitlab.errors import OptionError
from vitlab.experiments.campaign_folder import MOST
from vitlab.experiments.cells import Cell, Experiment, Setup, begin, run_cells, title_of
from vitlab.experiments.statistics import (
    Row,
    intervals_of_means,
    kept,
    lead_of,
    learned_before,
    mean_and_std,
    table_of,
)
from vitlab.experiments.sweep import best_point, search_result, searching
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.progress import PLACE, public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import Table, TablePage
from vitlab.runs.naming import run_name
from vitlab.training.own_code import Transform

OF_MODEL = ("model", "params", "macs")


@public(recipe=Recipe, out=PLACE)
def repeat(
    recipe: Recipe,
    out: str | Path | None = None,
    seeds: int = 3,
    *,
    sweep: Sequence[float] | None = None,
    layer_decays: Sequence[float] = (),
    share: float | None = None,
    start: Model | None = None,
    resume: bool = False,
    host: Host | None = None,
    transform: Transform | None = None,
    loss: Loss | None = None,
    jobs: int = 1,
    cells: str = "",
    command: str = "",
    quiet: bool = False,
) -> dict[str, Any]:
    """Train several times, each time with another seed, and report mean and deviation.

    The seeds are the recipe's own and those after it. They decide the first weights, the order of
    the images, augmentation and dropout; which images are held out for tests stays the same. With
    `sweep` it is the protocol of the ViT paper's Table 2: the learning rate is chosen on held-out
    training images, with the recipe's own seed, and every seed is trained with it on all of them.

    Args:
        recipe: what to learn
        out: the folder of all runs; None for a new one in `runs/`, named after data and model
        seeds: their number, at least 2
        sweep: learning rates to choose from as `vitlab.sweep` does, in `sweep/` of that folder;
            empty for its default grid, None for the recipe's own rate
        layer_decays: of the sweep, as for `vitlab.sweep`
        share: of the sweep, as for `vitlab.sweep`
        start: a model to start from, in place of `recipe.start.weights`
        resume: continue in that folder, repeating no finished run; start if there is none
        host: device, workers, checkpoints
        transform: a function of your own on the training images, as in `vitlab.train`
        loss: a function of your own in place of the recipe's loss, as in `vitlab.train`
        jobs: runs at the same time, as for `vitlab.sweep`
        cells: `0/8` for the first of eight processes of an array, as for `vitlab.sweep`
        command: what the user typed, for the report
        quiet: print nothing but warnings

    Returns:
        The mean of each figure over the seeds under the figure's own name, and again under `mean`;
        `std`, the sample standard deviations; `intervals`, the 95% confidence interval of each mean
        by Student's t (of other seeds, not of other test images); `seeds`, `images`, `model`,
        `params`, `macs`, `runs`, perhaps `sweep`, `learned_from` and `notes`, and the places of
        the runs and of the report. Empty in every process but the first of those that torchrun
        started.

    Raises:
        OptionError: fewer than two seeds, or as `vitlab.sweep`.
        DivergedError: the run of a seed diverged, or all of a sweep.
        CellsLeftError: a part of the runs is done.
        UserError: as `vitlab.train`.
    """
    if not 2 <= seeds <= MOST:
        raise OptionError(f"seeds must be at least 2 and at most {MOST}, not {seeds}")
    settings: dict[str, Any] = {"seeds": seeds}
    grid: list[Cell] = []
    if sweep is not None:
        found, grid = searching(recipe, sweep or None, layer_decays, share)
        settings |= found
    after, decide = tuple(cell.name for cell in grid), best_point if grid else None
    runs = [
        Cell(f"seed-{seed}", recipe.changed(seed=seed), {"seed": seed}, after, decide)
        for seed in range(recipe.seed, recipe.seed + seeds)
    ]
    setup = Setup(host or Host(), command, resume, start, transform, loss, jobs, cells)
    name = run_name(recipe, start, f"{seeds}-seeds")
    experiment = begin("series of seeds", settings, recipe, out, name, setup)
    rows = list(run_cells([*grid, *runs], experiment).values())
    if not experiment.first:
        return {}
    search = search_result(rows[: len(grid)], settings["sweep_share"]) if grid else None
    return experiment.campaign.record["result"] or _conclude(
        experiment, recipe, rows[len(grid) :], search
    )


def _conclude(
    experiment: Experiment,
    recipe: Recipe,
    rows: list[Row],
    search: tuple[dict[str, Any], Table] | None,
) -> dict[str, Any]:
    """Return the figures of all seeds, and write down result and page."""
    found, seeds = mean_and_std(rows), [row["seed"] for row in rows]
    before = learned_before(rows[:1])
    result = {
        **found["mean"],
        "intervals": intervals_of_means(found, len(rows)),
        "seeds": seeds,
        "images": rows[0]["images"],
        **{key: rows[0][key] for key in OF_MODEL},
        **before,
        **found,
        "runs": [kept(row, "seed") for row in rows],
        **({"sweep": search[0]} if search else {}),
        **experiment.places,
    }
    note = "Each model was trained from another seed and tested on the same images."
    tables = [table_of("seed", result, {}, note)]
    lead = lead_of(result, f"{len(rows)} seeds ({seeds[0]} to {seeds[-1]})")
    if search:
        tables.append(search[1])
        lead += f" All were trained with {title_of(search[0]['chosen'])}, which a sweep chose."
    title = f"{rows[0]['model']} on {recipe.data.data}, {len(rows)} seeds"
    return experiment.finish(result, TablePage(title, lead, tables, notes=before.get("notes", ())))
