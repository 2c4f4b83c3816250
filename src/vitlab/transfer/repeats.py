"""`vitlab.repeat`: the same training with several seeds."""

from pathlib import Path
from typing import Any

from vitlab.errors import OptionError
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.progress import public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import TablePage, write_tables
from vitlab.runs.naming import run_name
from vitlab.training.step.transform import Transform
from vitlab.transfer.campaign_folder import MOST, CampaignFolder
from vitlab.transfer.spread import (
    intervals_of_means,
    lead_of,
    learned_before,
    mean_and_std,
    row_of,
    table_of,
)
from vitlab.transfer.trials import Campaign, Parts, Trial, begin, campaign_place

OF_MODEL = ("model", "params", "macs")


@public(recipe=Recipe)
def repeat(
    recipe: Recipe,
    out: str | Path | None = None,
    seeds: int = 3,
    *,
    start: Model | None = None,
    resume: bool = False,
    host: Host | None = None,
    transform: Transform | None = None,
    loss: Loss | None = None,
    command: str = "",
    quiet: bool = False,
) -> dict[str, Any]:
    """Train several times, each time with another seed, and report mean and deviation.

    The seeds are the recipe's own and those after it. They decide the first weights, the order of
    the images, augmentation and dropout; which images are held out for tests stays the same.

    Args:
        recipe: what to learn
        out: the folder of all runs; None for a new one in `runs/`, named after data and model
        seeds: their number, at least 2
        start: a model to start from, in place of `recipe.start.weights`
        resume: continue in that folder, repeating no finished run; start if there is none
        host: device, workers, checkpoints
        transform: a function of your own on the training images, as in `vitlab.train`
        loss: a function of your own in place of the recipe's loss, as in `vitlab.train`
        command: what the user typed, for the report
        quiet: print nothing but warnings

    Returns:
        The mean of each figure over the seeds under the figure's own name, and again under `mean`;
        `std`, the sample standard deviations; `intervals`, the 95% confidence interval of each mean
        by Student's t (of other seeds, not of other test images); `seeds`, `images`, `model`,
        `params`, `macs`, `runs`, perhaps `learned_from` and `notes`, and the places of the runs and
        of the report. Empty in every process but the first of those that torchrun started.

    Raises:
        OptionError: fewer than two seeds.
        DivergedError: the run of a seed diverged.
        UserError: as `vitlab.train`.
    """
    if not 2 <= seeds <= MOST:
        raise OptionError(f"seeds must be at least 2 and at most {MOST}, not {seeds}")
    host = host or Host()
    name = run_name(recipe, start, f"{seeds}-seeds")
    folder = CampaignFolder(campaign_place(out, name, resume=resume, host=host))
    numbers = [recipe.seed + number for number in range(seeds)]
    trials = [Trial(f"seed-{seed}", recipe.changed(seed=seed), f"seed {seed}") for seed in numbers]
    settings, parts = {"seeds": seeds}, Parts(start, transform, loss)
    campaign = begin(
        "series of seeds",
        folder,
        settings,
        recipe,
        parts,
        resume=resume,
        host=host,
        command=command,
    )
    outcomes = list(campaign.outcomes(trials))
    rows = [row_of("seed", seed, each) for seed, each in zip(numbers, outcomes, strict=True)]
    if not campaign.first:
        return {}
    run = outcomes[0].run
    about = {key: run.metrics[key] for key in OF_MODEL} if run else {}
    return folder.record["result"] or _conclude(campaign, recipe, rows, about)


def _conclude(
    campaign: Campaign, recipe: Recipe, rows: list[dict[str, Any]], about: dict[str, Any]
) -> dict[str, Any]:
    """Return the figures of all seeds, and write down result and page."""
    found, seeds = mean_and_std(rows), [row["seed"] for row in rows]
    before = learned_before(rows[:1])
    notes = before.get("notes", [])
    for each in notes:
        campaign.say(each)
    result = {
        **found["mean"],
        "intervals": intervals_of_means(found, len(rows)),
        "seeds": seeds,
        "images": rows[0]["images"],
        **about,
        **before,
        **found,
        "runs": rows,
        "run": str(campaign.folder.path),
        "report": str(campaign.folder.report),
    }
    note = "Each model was trained from another seed and tested on the same images."
    table = table_of("Seeds", "seed", result, {}, note)
    lead = lead_of(result, f"{len(rows)} seeds ({seeds[0]} to {seeds[-1]})")
    title = f"{about['model']} on {recipe.data.data}, {len(rows)} seeds"
    page = TablePage(title, lead, [table], notes=notes, command=campaign.command)
    write_tables(campaign.folder.report, page)
    campaign.folder.finish(result)
    return result
