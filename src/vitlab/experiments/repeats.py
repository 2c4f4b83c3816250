"""`vitlab.repeat`, `vitlab.cross_validate`: runs that differ in their seed, or in their test fold.

The seeds of a series share the rate that a sweep has chosen, if one is asked for. In a
cross-validation every image is predicted by a model that did not learn from it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.labels import Labels
from vitlab.errors import OptionError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import predict
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.label_errors import LabelErrors, find_label_errors, write_suspects
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.rows import RowLayout, table_to
from vitlab.evaluation.run_predictions import reopened
from vitlab.evaluation.statistics import t_quantile
from vitlab.experiments.campaign_folder import MOST
from vitlab.experiments.cells import (
    OF_RUN,
    Cell,
    Experiment,
    Row,
    Setup,
    begin,
    run_cells,
    tested,
    title_of,
)
from vitlab.experiments.sweep import Choices, best_point, choices_of, search_result, searching
from vitlab.experiments.timing import length_told
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.places import On
from vitlab.public_calls import PLACE, public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.page import ReportTable, TablePage
from vitlab.runs.naming import run_name
from vitlab.training.transform import Transform
from vitlab.units import percent
from vitlab.weights.load import load

PREDICTIONS = "predictions.csv"
LABEL_ERRORS = "label-errors.csv"
LISTED = 50  # likely label errors on the page


@public(recipe=Recipe, out=PLACE)
def repeat(
    recipe: Recipe,
    out: str | Path | None = None,
    seeds: int = 3,
    *,
    sweep: Sequence[float] | None = None,
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
        more: of the sweep, as for `vitlab.sweep`
        share: of the sweep, as for `vitlab.sweep`
        start: a model to start from, in place of `recipe.start.weights`
        resume: continue in that folder, repeating no finished run; start if there is none
        host: device, workers, checkpoints
        transform: a function of your own on the training images, as in `vitlab.train`
        loss: a function of your own in place of the recipe's loss, as in `vitlab.train`
        jobs: runs at the same time, as for `vitlab.sweep`
        cells: `0/8` for the first of eight processes of an array, as for `vitlab.sweep`
        on: `ray` for runs on a cluster, as for `vitlab.sweep`
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
    choices = choices_of(layer_decays, more)
    settings, grid, runs = seed_cells(recipe, seeds, sweep, choices, share)
    setup = Setup(host or Host(), command, resume, start, transform, loss, jobs, cells, on)
    name = run_name(recipe, start, f"{seeds}-seeds")
    experiment = begin("series of seeds", settings, recipe, out, name, setup)
    with length_told([*grid, *runs], experiment):
        rows = list(run_cells([*grid, *runs], experiment).values())
    if not experiment.first:
        return {}
    search = None
    if grid:
        search = search_result(rows[: len(grid)], settings["sweep_share"], grid[0].labels)
    return experiment.campaign.record["result"] or _seeds_together(
        experiment, recipe, rows[len(grid) :], search
    )


def seed_cells(
    recipe: Recipe, seeds: int, sweep: Sequence[float] | None, choices: Choices, share: float | None
) -> tuple[dict[str, Any], list[Cell], list[Cell]]:
    """Return the settings of a series of seeds, the cells that choose its rate, and its own.

    Raises:
        OptionError: as `repeat`.
    """
    if not 2 <= seeds <= MOST:
        raise OptionError(f"seeds must be at least 2 and at most {MOST}, not {seeds}")
    settings: dict[str, Any] = {"seeds": seeds}
    last = Cell("", recipe, {})
    grid: list[Cell] = []
    if sweep is not None:
        found, grid = searching(recipe, sweep or None, choices, share)
        settings |= found
        after = tuple(cell.name for cell in grid)
        names = tuple(grid[0].labels)
        last = replace(
            last, after=after, settle=lambda own, tried: own.changed(**best_point(tried, names))
        )
    numbers = range(recipe.seed, recipe.seed + seeds)
    return settings, grid, [replace(last.changed(seed=n), name=f"seed-{n}") for n in numbers]


def _seeds_together(
    experiment: Experiment,
    recipe: Recipe,
    rows: list[Row],
    search: tuple[dict[str, Any], ReportTable] | None,
) -> dict[str, Any]:
    """Return the figures of all seeds, and write down result and page."""
    found, seeds = mean_and_std(rows), [row["seed"] for row in rows]
    before = learned_before(rows[:1])
    result = {
        **found["mean"],
        "intervals": intervals_of_means(found, len(rows)),
        "seeds": seeds,
        "images": tested(rows[0]),
        **{key: rows[0][key] for key in ("model", "params", "macs")},
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


@public(recipe=Recipe, out=PLACE)
def cross_validate(
    recipe: Recipe,
    out: str | Path | None = None,
    folds: int = 5,
    *,
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
) -> dict[str, Any]:
    """Train once per fold, each time testing on the images of that fold.

    The folds are parts of the training images, or of all images if the data comes unsplit: about
    equal in size, decided by a hash of each image (`data.holdout`), and the same for every recipe
    and seed. A test split of the data is left unused, for the model that is chosen in the end.

    Args:
        recipe: what to learn
        out: the folder of all runs; None for a new one in `runs/`, named after data and model
        folds: their number, at least 2
        start: a model to start from, in place of `recipe.start.weights`
        resume: continue in that folder, repeating no finished run; start if there is none
        host: device, workers, checkpoints
        transform: a function of your own on the training images, as in `vitlab.train`
        loss: a function of your own in place of the recipe's loss, as in `vitlab.train`
        jobs: runs at the same time, as for `vitlab.sweep`
        cells: `0/8` for the first of eight processes of an array, as for `vitlab.sweep`
        on: `ray` for runs on a cluster, as for `vitlab.sweep`
        command: what the user typed, for the report
        quiet: print nothing but warnings

    Returns:
        The figures of all out-of-fold predictions together (the keys of `vitlab.evaluate`), perhaps
        `learned_from` and `notes` as there, `folds`, `mean` and `std` (the sample standard
        deviation) of each figure over the folds, `runs`, `label_errors` (the images whose labels
        are likely wrong: `file`, `listed` and `expected`), and the places of the predictions (CSV)
        and of the report; empty in every process but the first of those that torchrun started.

    Raises:
        OptionError: fewer than two folds, or a recipe with a fold of its own.
        DivergedError: the run of a fold diverged.
        CellsLeftError: a part of the runs is done.
        UserError: as `vitlab.train`.
    """
    runs = fold_cells(recipe, folds)
    setup = Setup(host or Host(), command, resume, start, transform, loss, jobs, cells, on)
    name = run_name(recipe, start, f"{folds}-folds")
    experiment = begin("cross-validation", {"folds": folds}, recipe, out, name, setup)
    with length_told(runs, experiment):
        rows = list(run_cells(runs, experiment).values())
    if not experiment.first:
        return {}
    return experiment.campaign.record["result"] or _folds_together(experiment, runs, rows)


def fold_cells(recipe: Recipe, folds: int) -> list[Cell]:
    """Return the cells of a cross-validation.

    Raises:
        OptionError: as `cross_validate`.
    """
    if not 2 <= folds <= MOST:
        raise OptionError(f"folds must be at least 2 and at most {MOST}, not {folds}")
    if recipe.data.fold or recipe.data.dev_share:
        raise OptionError("folds are chosen by the campaign: leave fold and dev_share out")
    return [
        replace(Cell("", recipe, {}).changed(fold=f"{n}/{folds}"), name=f"fold-{n}-of-{folds}")
        for n in range(1, folds + 1)
    ]


def _folds_together(experiment: Experiment, cells: list[Cell], rows: list[Row]) -> dict[str, Any]:
    """Return the figures of all folds together, and write down predictions, result and page."""
    file, before = experiment.out / PREDICTIONS, learned_before(rows)
    result = before | {
        "folds": len(rows),
        **mean_and_std(rows),
        "runs": [kept(row, "fold") for row in rows],
        **experiment.places,
    }
    if cells[0].recipe.pretext.annotated:  # what is found in images has no row in a table
        every = result["mean"] | {"images": sum(map(tested, rows))}
        return experiment.finish(every | result, _page(cells[0].recipe, every | result))
    figures, errors, listed = write_predictions(file, experiment, cells)
    suspects = write_suspects(file.with_name(LABEL_ERRORS), errors, listed)
    result = figures | result | {"label_errors": suspects, "predictions": str(file)}
    return experiment.finish(result, _page(cells[0].recipe, result, errors, listed))


def write_predictions(
    file: Path, experiment: Experiment, cells: list[Cell]
) -> tuple[dict[str, Any], LabelErrors, list[Row]]:
    """Write a row per image, predicted by the model of its fold.

    The columns are those of `vitlab evaluate --out` (evaluation/rows.py), and `fold`.

    Returns:
        The figures of all predictions together, the likely label errors, and a row for each.

    Raises:
        DiskError: the file cannot be written.
    """
    runs = [experiment.run(cell) for cell in cells]
    sources = [reopened(run).test for run in runs]
    layouts = [
        RowLayout(source, truth=True, more=dict(cell.labels))
        for source, cell in zip(sources, cells, strict=True)
    ]
    host, found = experiment.setup.host, []
    with table_to(file, layouts[0].kinds) as write:
        for run, layout in zip(runs, layouts, strict=True):
            done = predict(
                load(run.path),
                layout.source,
                Compute(host.device, engine="plain", workers=host.workers),
                use=lambda part, layout=layout: write(layout.rows(part)),  # type: ignore[misc]
            )
            found.append(done)
    rows = np.concatenate([each.probabilities for each in found])
    every: list[Any] = [each.labels for each in found]
    labels: Labels = type(every[0]).concat(every)
    names = [
        source.name(index)
        for source, done in zip(sources, found, strict=True)
        for index in done.indices.tolist()
    ]
    errors = find_label_errors(rows, labels)
    figures = with_intervals(rows, labels, host.effort.resamples)
    return figures, errors, errors.rows(sources[0].classes, names.__getitem__)


def _page(
    recipe: Recipe,
    result: dict[str, Any],
    found: LabelErrors | None = None,
    listed: Sequence[Row] = (),
) -> TablePage:
    """Return the page of all folds, with the likely label errors, if there are any."""
    note = "Each model was tested on images that its own run did not learn from."
    together = {"all predictions together": result} if found else {}
    tables = [table_of("fold", result, together, note)]
    if found and listed:
        head = ("image", "label", "likely", "probability of the label")
        keys = [*found.kinds][:3]
        rows = [
            (*(_text(row[key]) for key in keys), percent(row["p_label"])) for row in listed[:LISTED]
        ]
        what = "answers" if found.several else "labels"
        note = (
            f"By confident learning (Northcutt et al., 2021) from predictions of models that did "
            f"not learn from the image: {len(listed):,} of {found.images:,} images, "
            f"likeliest error first; about {found.estimated:,.0f} wrong {what} are estimated in "
            f"all. The first {len(rows)} are below, all of them in {LABEL_ERRORS}, beside this "
            "page."
        )
        tables.append(ReportTable("Likely label errors", head, rows, note=note))
    lead = lead_of(result, f"{result['folds']} folds")
    last = f"A row per image with its probabilities: {PREDICTIONS}, beside this page."
    notes = [*result.get("notes", ()), *[last] * bool(found)]
    return TablePage(f"Cross-validation on {recipe.data.data}", lead, tables, notes=notes)


def _text(names: str | list[str]) -> str:
    """Return a name, or several of them."""
    return names if isinstance(names, str) else ", ".join(names) or "none"


def kept(row: Row, *labels: str) -> Row:
    """Return what a result has of a row: its labels and the figures of the test."""
    return {key: row[key] for key in (*labels, *METRICS, *OF_RUN) if key in row}


def learned_before(rows: Sequence[Row]) -> Row:
    """Return how many test images of some runs were learned from before them, and a note on it."""
    known = sum(row.get("learned_from", 0) for row in rows)
    if not known:
        return {}
    note = (
        f"the weights or the teacher of these runs have learned from {known:,} of "
        f"{sum(map(tested, rows)):,} test images: figures are too good"
    )
    return {"learned_from": known, "notes": [note]}


def mean_and_std(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return `mean` and `std`, the sample standard deviation, of each figure that all rows have."""
    names = [key for key in METRICS if all(row.get(key) is not None for row in rows)]
    values = {name: [row[name] for row in rows] for name in names}
    return {
        "mean": {name: float(np.mean(values[name])) for name in names},
        "std": {name: float(np.std(values[name], ddof=1)) for name in names},
    }


def intervals_of_means(found: dict[str, dict[str, float]], runs: int) -> dict[str, list[float]]:
    """Return the 95% confidence interval of each mean over runs, by Student's t.

    Args:
        found: from `mean_and_std`
        runs: how many there were
    """
    reach = t_quantile(runs - 1) / math.sqrt(runs)
    result = {}
    for name, mean in found["mean"].items():
        ends = [mean - reach * found["std"][name], mean + reach * found["std"][name]]
        share = METRICS[name].unit == "percent"
        result[name] = [min(max(end, 0.0), 1.0) for end in ends] if share else ends
    return result


def table_of(what: str, result: Row, more: dict[str, Row], note: str) -> ReportTable:
    """Return the table of all runs, then of their mean, their deviation and further rows.

    Args:
        what: the label that tells the rows apart, `seed`
        result: has `runs`, `mean` and `std`
        more: further rows by their titles
        note: a sentence above it
    """
    rows = [(str(row[what]), row) for row in result["runs"]]
    rows += [("mean", result["mean"]), ("standard deviation", result["std"]), *more.items()]
    metrics = [METRICS[name] for name in result["mean"]]
    texts = [(name, *(each.text(row[each.name]) for each in metrics)) for name, row in rows]
    head = (what, *(each.word for each in metrics))
    return ReportTable(f"{what.capitalize()}s", head, texts, note=note)


def lead_of(result: Row, runs: str) -> str:
    """Return the sentence that a page begins with: the first figure of all `runs`."""
    first = METRICS[next(iter(result["mean"]))]
    mean, std = (first.text(result[key][first.name]) for key in ("mean", "std"))
    return (
        f"{first.title} {mean} ± {std}: mean and standard deviation of {runs}, "
        f"{result['images']:,} images."
    )
