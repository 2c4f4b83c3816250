"""`vitlab.sweep`: choose the learning rate on a held-out part of the training images."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vitlab.data.learning import splits_of
from vitlab.errors import DivergedError, OptionError, RunError
from vitlab.evaluation.metrics import METRICS
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.progress import public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.runs.naming import run_name
from vitlab.runs.run_folder import RunFolder
from vitlab.training.ending import Run
from vitlab.training.step.transform import Transform
from vitlab.transfer.campaign_folder import sweep_of
from vitlab.transfer.grids import SHARE, default_grid, grid_of, paper_data
from vitlab.transfer.trials import Campaign, Outcome, Parts, Trial, begin, campaign_place
from vitlab.units import percent

Point = dict[str, float]
"""A point of the grid: a learning rate, perhaps a layer decay."""


@public(recipe=Recipe)
def sweep(
    recipe: Recipe,
    out: str | Path | None = None,
    grid: Sequence[float] | None = None,
    *,
    layer_decays: Sequence[float] = (),
    share: float | None = None,
    start: Model | None = None,
    resume: bool = False,
    host: Host | None = None,
    transform: Transform | None = None,
    loss: Loss | None = None,
    command: str = "",
    quiet: bool = False,
) -> Run:
    """Train with each learning rate of a grid, then with the best one on all training images.

    The protocol of the ViT paper (section 4.1, Table 4): a share of the training images is held
    out, the same for every run; the highest accuracy on it decides (mAP if images have several
    labels), ties go to the lower rate, then to the lower layer decay. The test images have no
    influence: only the last run sees them. A run that diverges counts as such and is not repeated.

    Args:
        recipe: what to learn; the chosen learning rate replaces its own
        out: the folder of the last run, which has those of the others in `sweep/`; None for a new
            one in `runs/`, named after data and model
        grid: learning rates; None for the paper's grid for the data if the recipe has SGD, or for
            one around the recipe's own values if it has AdamW (`transfer/grids.py`)
        layer_decays: to try with each learning rate; none for the recipe's own
        share: of the training images to hold out; None for the paper's: 1% of ImageNet, 2% of
            CIFAR-10 and -100, 10% of everything else
        start: a model to start from, in place of `recipe.start.weights`
        resume: continue the sweep in that folder, repeating no finished run; start it if there is
            none
        host: device, workers, checkpoints
        transform: a function of your own on the training images, as in `vitlab.train`
        loss: a function of your own in place of the recipe's loss, as in `vitlab.train`
        command: what the user typed, for the report
        quiet: print nothing but warnings

    Returns:
        The last run; its metrics have the sweep under `sweep`.

    Raises:
        OptionError: no grid for this recipe and data, or one that cannot be.
        RunError: the folder is in the way, or its sweep was started otherwise.
        DivergedError: every run of the grid, or the last run, diverged.
        UserError: as `vitlab.train`.
    """
    if recipe.data.fold or recipe.data.dev_share:
        raise OptionError("a sweep holds images out by itself: leave fold and dev_share out")
    points, share = _choices(recipe, grid, layer_decays, share)
    trials = [_trial(recipe, point, share) for point in points]
    out = campaign_place(out, run_name(recipe, start), resume=resume, host=host)
    folder, final = sweep_of(out), RunFolder(out)
    if final.started and not folder.started:
        raise RunError(f"{out} already contains a run without a sweep: choose another --out")
    if not final.started and not final.free:
        raise RunError(f"{out} exists and contains no run: choose a new or empty folder")
    settings, parts = _settings(points, share), Parts(start, transform, loss)
    campaign = begin(
        "sweep", folder, settings, recipe, parts, resume=resume, host=host, command=command
    )
    rows = [_row(p, each) for p, each in zip(points, campaign.outcomes(trials), strict=True)]
    result = _decided(campaign, recipe, share, points, rows)
    best = points[result["best"]]
    campaign.say(f"chosen: {_title(best)}; training on all training images")
    run = campaign.train(recipe.changed(**best), final)
    return replace(run, metrics=run.metrics | {"sweep": result})


def _choices(
    recipe: Recipe, grid: Sequence[float] | None, decays: Sequence[float], share: float | None
) -> tuple[list[Point], float]:
    """Return the grid and the share to hold out, the defaults being those of the data."""
    if grid is not None:
        points = grid_of(list(grid), tuple(decays))
    known = None
    if grid is None or share is None:
        splits = splits_of(recipe.data)
        known = paper_data(recipe.data.data, len(splits.classes))
    if grid is None:
        points = default_grid(recipe, known)
        if decays:
            points = grid_of([*dict.fromkeys(point["lr"] for point in points)], tuple(decays))
    share = share if share is not None else known.share if known else SHARE
    if not 0 < share < 1:
        raise OptionError(f"sweep_share must be above 0 and below 1, not {share:g}")
    return points, share


def _settings(points: list[Point], share: float) -> dict[str, Any]:
    """Return the grid by the names of the command's options."""
    rates, decays = (
        sorted({point[key] for point in points if key in point}) for key in ("lr", "layer_decay")
    )
    return {"sweep": rates, "sweep_layer_decay": decays, "sweep_share": share}


def _trial(recipe: Recipe, point: Point, share: float) -> Trial:
    name = "-".join(f"{key.replace('_', '-')}-{value:g}" for key, value in point.items())
    return Trial(name, recipe.changed(dev_share=share, **point), _title(point))


def _title(point: Point) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in point.items())


def _row(point: Point, outcome: Outcome) -> dict[str, Any]:
    """Return a row of the table in JSON."""
    row = {**point, "run": str(outcome.folder.path), "diverged": outcome.run is None}
    figures = (each.name for each in METRICS.values() if each.key)
    kept = (*figures, "images", "learned_from", "seconds")
    metrics = outcome.run.metrics if outcome.run else {}
    return row | {key: metrics[key] for key in kept if key in metrics}


def best_of(rows: Sequence[dict[str, Any]]) -> int | None:
    """Return the number of the row with the highest accuracy or mAP, ties to the first one."""
    scores = [row.get("accuracy", row.get("map")) for row in rows]
    known = [(-score, number) for number, score in enumerate(scores) if score is not None]
    return min(known)[1] if known else None


def _decided(
    campaign: Campaign,
    recipe: Recipe,
    share: float,
    points: list[Point],
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the sweep's result and write it down.

    Raises:
        DivergedError: there is nothing to choose from.
    """
    best = best_of(rows)
    if best is None:
        raise DivergedError(
            f"all {len(rows)} runs of the sweep diverged: try lower rates, such as --sweep "
            f"{points[0]['lr'] / 30:.2g} {points[0]['lr'] / 10:.2g}, and another --out"
        )
    table = _table(rows, best, share)
    result = {"share": share, "best": best, "chosen": points[best], "runs": rows}
    if campaign.first:
        campaign.folder.finish(result | {"table": asdict(table)})
        lead = f"{len(rows)} runs; {_title(points[best])} was best on the held-out images."
        page = TablePage(f"Sweep on {recipe.data.data}", lead, [table], command=campaign.command)
        write_tables(campaign.folder.report, page)
    return result


def _table(rows: list[dict[str, Any]], best: int, share: float) -> Table:
    figure = "accuracy" if "accuracy" in rows[best] else "map"
    loss = "nll" if figure == "accuracy" else "bce"
    keys = [key for key in ("lr", "layer_decay") if key in rows[0]]
    head = tuple(key.replace("lr", "learning rate").replace("_", " ") for key in keys)
    lines = [
        (*(f"{row[key]:g}" for key in keys), "diverged", "")
        if row["diverged"]
        else (*(f"{row[key]:g}" for key in keys), percent(row[figure]), f"{row[loss]:.3f}")
        for row in rows
    ]
    note = (
        f"Each run held out {share:.3g} of each class of the training images "
        f"({rows[best]['images']:,} images) and was measured on them; the marked one was best."
    )
    return Table("Sweep", (*head, METRICS[figure].word, METRICS[loss].word), lines, best, note)
