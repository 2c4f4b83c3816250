"""`vitlab.sweep`: choose the learning rate on a held-out part of the training images.

What is tried if nothing else is asked for are the ViT paper's learning rates (Table 4), or some
around a recipe's own; the shares of the training images that it held out are in its section B.1.1.
It lists 0.06 for ImageNet without saying that only ResNets and hybrids used it, as its text
suggests: all models try it here.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DivergedError, OptionError
from vitlab.evaluation.metrics import METRICS, main_of
from vitlab.evaluation.records import RunRecord
from vitlab.experiments.cells import (
    FAILED,
    OF_RUN,
    Cell,
    Row,
    Setup,
    begin,
    run_cells,
    tested,
    title_of,
)
from vitlab.experiments.timing import length_told
from vitlab.files import SWEEP_FOLDER
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.places import On
from vitlab.public_calls import PLACE, public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.page import ReportTable, TablePage
from vitlab.runs.naming import run_name
from vitlab.training.outcome import Run
from vitlab.training.transform import Transform

SHARE = 0.1  # held out of data that is not the paper's
FACTORS = (0.3, 1.0, 3.0)  # of a recipe's own learning rate
DROPS = (1.4, 1.0, 0.6)  # of 1 - layer_decay: 0.65, 0.75, 0.85 around 0.75, as BEiT's appendix

Point = dict[str, float]
Choices = Mapping[str, Sequence[float]]
"""Values to try with each learning rate, by the names of their options."""


@dataclass(frozen=True)
class PaperData:
    """A data set that the ViT paper fine-tuned on.

    Attributes:
        name: a pattern of its name, and nothing else's
        classes: their number
        share: of the training images that the paper held out
        rates: the learning rates that it tried, with SGD
    """

    name: str
    classes: int
    share: float
    rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03)


PAPER = (
    PaperData(r"imagenet([-_]?1k|2012)?|ilsvrc[-_]?2012", 1000, 0.01, (0.003, 0.01, 0.03, 0.06)),
    PaperData(r"cifar[-_]?10", 10, 0.02),
    PaperData(r"cifar[-_]?100", 100, 0.02),
    PaperData(r"(oxford[-_]?)?(iiit[-_]?)?pets?", 37, 0.1),
    PaperData(r"(oxford[-_]?)?flowers?[-_]?(102)?", 102, 0.1),
)


@public(recipe=Recipe, out=PLACE)
def sweep(
    recipe: Recipe,
    out: str | Path | None = None,
    grid: Sequence[float] | None = None,
    *,
    layer_decays: Sequence[float] = (),
    more: Choices | None = None,
    share: float | None = None,
    start: Model | None = None,
    resume: bool = False,
    host: Host | None = None,
    transform: Transform | None = None,
    loss: Loss | None = None,
    jobs: int = 1,
    cells: str = "",
    on: On = "",
    command: str = "",
    quiet: bool = False,
) -> Run:
    """Train with each learning rate of a grid, then with the best one on all training images.

    The protocol of the ViT paper (section 4.1, Table 4): a share of the training images is held
    out, the same for every run; the highest accuracy on it decides (mAP if images have several
    labels, mIoU of masks, AP50 of boxes, R² of numbers), ties go to the lower values, the rate
    first. The test images have no influence: only the last run sees them. A run that diverges
    counts as such and is not repeated.

    Args:
        recipe: what to learn; the chosen learning rate replaces its own
        out: the folder of the last run, which has those of the others in `sweep/`; None for a new
            one in `runs/`, named after data and model
        grid: learning rates; None for the paper's grid for the data if the recipe has SGD, or for
            one around the recipe's own values if it has AdamW: 0.3, 1 and 3 times its learning
            rate, each with three layer decays if it has one
        layer_decays: to try with each learning rate; none for the recipe's own
        more: further options to try with each, such as `{"weight_decay": [0.03, 0.1], "dropout":
            [0, 0.1], "label_smoothing": [0, 0.1]}`, which the paper chose for small data (4.3)
        share: of the training images to hold out; None for the paper's: 1% of ImageNet, 2% of
            CIFAR-10 and -100, 10% of everything else
        start: a model to start from, in place of `recipe.start.weights`
        resume: continue the sweep in that folder, repeating no finished run; start it if there is
            none
        host: device, workers, checkpoints
        transform: a function of your own on the training images, as in `vitlab.train`
        loss: a function of your own in place of the recipe's loss, as in `vitlab.train`
        jobs: runs of the grid at the same time, each in a process with its part of the cores; a
            script needs `if __name__ == "__main__":`
        cells: `0/8` for the first part of the grid of eight, one for each process of an array
        on: `ray` to train each run as a task of a Ray cluster, with a GPU or up to 4 cores: as many
            at the same time as there is room for, or `jobs` if that is more than 1
        command: what the user typed, for the report
        quiet: print nothing but warnings

    Returns:
        The last run; its metrics have the sweep under `sweep`.

    Raises:
        OptionError: no grid for this recipe and data, or an invalid one.
        RunError: the folder is in the way, or its sweep was started otherwise.
        DivergedError: every run of the grid, or the last run, diverged.
        CellsLeftError: a part of the grid is done.
        UserError: as `vitlab.train`.
    """
    settings, grid_cells = searching(recipe, grid, choices_of(layer_decays, more), share)
    setup = Setup(host or Host(), command, resume, start, transform, loss, jobs, cells, on)
    name = run_name(recipe, start)
    experiment = begin("sweep", settings, recipe, out, name, setup, of_run=True)
    with length_told([*grid_cells, Cell("", recipe, {})], experiment):
        rows = list(run_cells(grid_cells, experiment).values())
    result, table = search_result(rows, settings["sweep_share"], grid_cells[0].labels)
    point = result["chosen"]
    if experiment.first:
        lead = f"{len(grid_cells)} runs; {title_of(point)} was best on the held-out images."
        page = TablePage(f"Sweep on {recipe.data.data}", lead, [table])
        experiment.finish(result | {"table": asdict(table)}, page)
    experiment.say(f"chosen: {title_of(point)}; training on all training images")
    best = recipe.changed(**point)
    if on:
        run_cells([Cell("", best, point)], experiment)
    run = experiment.trainer.run(best, experiment.out)
    return replace(run, metrics=RunRecord(run.metrics | {"sweep": result}))


def choices_of(layer_decays: Sequence[float], more: Choices | None) -> Choices:
    """Return what is tried with each learning rate."""
    return ({"layer_decay": layer_decays} if layer_decays else {}) | dict(more or {})


def searching(
    recipe: Recipe, grid: Sequence[float] | None, choices: Choices, share: float | None
) -> tuple[dict[str, Any], list[Cell]]:
    """Return the settings of a search, by the names of the command's options, and its cells.

    Args:
        recipe: of all runs
        grid: as for `sweep`
        choices: what else is tried with each rate
        share: as for `sweep`

    Raises:
        OptionError: as `sweep`.
        DataError: the data cannot be used.
    """
    if recipe.data.fold or recipe.data.dev_share:
        raise OptionError("a sweep holds images out by itself: leave fold and dev_share out")
    known, task = None, recipe.pretext.task
    if not recipe.pretext.labeled:
        raise OptionError(f"a sweep needs labels to choose by, not task={task}: name one lr")
    if (grid is None or share is None) and not recipe.pretext.annotated:
        known = paper_data(
            recipe.data.data, len(open_to_learn(recipe.data.data, options=recipe.data).classes)
        )
    points = default_grid(recipe, known) if grid is None else grid_of(grid)
    usual = {key: [each[key] for each in points] for key in points[0]}
    points = grid_of(usual.pop("lr"), {**usual, **choices})
    if share is None:
        share = known.share if known else SHARE
    if not 0 < share < 1:
        raise OptionError(f"sweep_share must be above 0 and below 1, not {share:g}")
    tried = {key: [*dict.fromkeys(each[key] for each in points)] for key in points[0]}
    rates, decays = tried.pop("lr"), tried.pop("layer_decay", [])
    settings = {"sweep": rates, "sweep_layer_decay": decays, "sweep_share": share}
    if tried:
        named = (f"{key}={','.join(f'{v:g}' for v in values)}" for key, values in tried.items())
        settings["sweep_more"] = [*named]
    whole = Cell(SWEEP_FOLDER, recipe.changed(dev_share=share), {}, may_diverge=True, searches=True)
    names = ["-".join(f"{k.replace('_', '-')}-{v:g}" for k, v in each.items()) for each in points]
    return settings, [
        replace(whole.changed(**point), name=f"{SWEEP_FOLDER}/{name}")
        for point, name in zip(points, names, strict=True)
    ]


def paper_data(data: str, classes: int) -> PaperData | None:
    """Return the paper's data set that some data is, by a part of its path and its classes."""
    parts = re.split(r"[/\\]", data.lower())
    for each in PAPER:
        if each.classes == classes and any(re.fullmatch(each.name, part) for part in parts):
            return each
    return None


def default_grid(recipe: Recipe, known: PaperData | None) -> list[Point]:
    """Return what to try: with SGD the paper's learning rates, with AdamW those around its own.

    Raises:
        OptionError: the paper has no grid for the data, or nobody for the optimizer.
    """
    how = recipe.optimizer
    if how.optimizer == "adamw":
        drop = 1 - how.layer_decay
        decays = dict.fromkeys(max(0.01, round(1 - drop * each, 4)) for each in DROPS if drop)
        rates = [float(f"{how.lr * factor:.3g}") for factor in FACTORS]
        return grid_of(rates, choices_of([*decays], None))
    if how.optimizer != "sgd":
        raise OptionError(
            f"there is no default grid for optimizer={how.optimizer}: name the rates, such as "
            f"--sweep {how.lr / 3:.2g} {how.lr:.2g} {how.lr * 3:.2g}"
        )
    if known is None:
        raise OptionError(
            f"the ViT paper has no grid for {recipe.data.data}: name the rates, such as --sweep "
            "0.001 0.003 0.01 0.03"
        )
    return grid_of(known.rates)


def grid_of(rates: Sequence[float], choices: Choices = MappingProxyType({})) -> list[Point]:
    """Return every learning rate with every value of the other options, the lowest first.

    Raises:
        OptionError: nothing to try of one of them.
    """
    if not rates:
        raise OptionError("the grid is empty: name learning rates, such as --sweep 0.003 0.01")
    if "lr" in choices:
        raise OptionError("lr is in the grid already: name other options with sweep_more")
    for name, values in choices.items():
        if not values:
            raise OptionError(f"{name} has no values to try, such as {name}=0,0.1")
    tried = [sorted(set(values)) for values in (rates, *choices.values())]
    return [dict(zip(("lr", *choices), values, strict=True)) for values in product(*tried)]


def best_of(rows: Sequence[Row]) -> Row:
    """Return the row with the best main figure, ties to the first one; else the first."""

    def score(row: Row) -> float:
        metric = main_of(row)
        return metric.score(row[metric.name]) if metric else -math.inf

    return max(rows, key=score)


def best_point(rows: Sequence[Row], options: Iterable[str]) -> Point:
    """Return the values of these options that were best on the held-out images.

    Raises:
        DivergedError: there is nothing to choose from.
    """
    best = best_of(rows)
    if FAILED in best:
        low = best["lr"]
        raise DivergedError(
            f"all {len(rows)} runs of the sweep diverged: try lower rates, such as --sweep "
            f"{low / 30:.2g} {low / 10:.2g}, and another --out"
        )
    return {key: best[key] for key in options}


def search_result(
    rows: Sequence[Row], share: float, options: Iterable[str]
) -> tuple[dict[str, Any], ReportTable]:
    """Return what a search has found, as JSON values and as a table.

    Raises:
        DivergedError: there is nothing to choose from.
    """
    point, best = best_point(rows, options), best_of(rows)
    number = rows.index(best)
    names = [*point, "run", *(each.name for each in METRICS.values() if each.key), *OF_RUN]
    lines = [
        {FAILED: FAILED in row} | {key: row[key] for key in names if key in row} for row in rows
    ]
    result = {"share": share, "best": number, "chosen": point, "runs": lines}
    shown = [each for each in METRICS.values() if each.key and best.get(each.name) is not None][:2]
    texts = [
        (
            *(f"{row[key]:g}" for key in point),
            *((FAILED, "") if FAILED in row else (each.text(row[each.name]) for each in shown)),
        )
        for row in rows
    ]
    note = (
        f"Each run held out {100 * share:.3g}% of the training images, of each class alike "
        f"({tested(best):,} images), and was measured on them; the marked one was best."
    )
    head = [key.replace("lr", "learning rate").replace("_", " ") for key in point]
    head += [each.word for each in shown]
    return result, ReportTable("Sweep", tuple(head), texts, number, note)
