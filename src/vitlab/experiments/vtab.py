"""`vitlab.vtab`: fine-tune weights on each task of VTAB-1k (ViT paper, section 4.1 and Figure 2).

One setting for all tasks: 2,500 steps of SGD in batches of 512 at 384 pixels, learning rate 0.01
(paper, Table 4), momentum 0.9, a cosine after 200 steps of warm-up, a zero classifier (scenic's
configuration). The 800 and 200 training images are learned from together. How the paper cropped
is not published: see `VtabSetting.augment`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitlab.data.vtab import BY_NAME, SEARCH, TASKS, WHOLE, VtabTask, available, open_task
from vitlab.errors import DataError
from vitlab.experiments.cells import Cell, Experiment, Setup, begin, run_cells
from vitlab.experiments.statistics import Row
from vitlab.experiments.sweep import best_of
from vitlab.experiments.vtab_scores import page, summary
from vitlab.experiments.vtab_setting import GRID, STEPS, WARMUP, VtabSetting
from vitlab.files import SWEEP_FOLDER
from vitlab.options import check_known
from vitlab.recipes.named import recipe as named
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import write_tables
from vitlab.runs.naming import folder_name

IMAGES = 1000  # to learn from
# Arguments of `vitlab.load` that a recipe calls otherwise.
OF_RECIPE = {"name": "weights_name", "part": "weights_part", "drop": "weights_drop"}
KEPT = (384 / 448) ** 2  # of an image's area, by a crop of 384 from 448 pixels


def vtab(
    weights: str,
    root: str | Path,
    out: str | Path | None = None,
    *,
    tasks: Sequence[str] = (),
    setting: VtabSetting | None = None,
    known: dict[str, Any] | None = None,
    resume: bool = False,
    host: Host | None = None,
    jobs: int = 1,
    cells: str = "",
    command: str = "",
) -> dict[str, Any]:
    """Fine-tune on each task that there is data for.

    Args:
        weights: anything that `vitlab.load` takes
        root: the folder of the tasks' data (see `vitlab.data.vtab`)
        out: folder that gets a run folder for each task; None for a new one, `runs/vtab-WEIGHTS`
        tasks: names of tasks; none for all that there is data for
        setting: how each task is learned
        known: what the file of the weights may not say, as `vitlab.load` takes it: name, heads, …
        resume: continue in that folder, repeating no finished run; start if there is none
        host: device, workers, checkpoints
        jobs: runs at the same time, as for `vitlab.sweep`
        cells: `0/8` for the first of eight processes of an array, as for `vitlab.sweep`
        command: what the user typed, for the reports

    Returns:
        accuracy (the mean over all 19 tasks; None if some are missing or diverged), done, of,
        mean_of_done, groups (the same for each), tasks (a row each), missing (names of the tasks
        without data) and the setting. In every process but the first of those that torchrun
        started, it is empty.

    Raises:
        DataError: no data for any task, or for one that is named; data that is not VTAB-1k's.
        OptionError: an unknown task.
        RunError: the folder is in the way, or its runs were started otherwise.
        CellsLeftError: a part of the runs is done.
        UserError: anything that `vitlab.train` raises, except that a run diverged.
    """
    setting, root = setting or VtabSetting(), Path(root).expanduser()
    chosen, missing = choose(root, tasks)
    given = {OF_RECIPE.get(name, name): value for name, value in (known or {}).items()}

    def recipe(task: VtabTask, data: str, lr: float) -> Recipe:
        return recipe_of(task, weights, data, setting, lr).changed(**given)

    runs = _cells(chosen, root, setting, recipe)
    setup = Setup(host or Host(), command, resume, jobs=jobs, cells=cells)
    base, name = recipe(TASKS[0], "", setting.lr), folder_name("vtab", weights)
    experiment = begin("vtab", {"data": str(root)}, base, out, name, setup)
    if missing:
        experiment.say(f"no data for {len(missing)} of {len(TASKS)} tasks: {', '.join(missing)}")
    rows = dict(zip((each.name for each in runs), run_cells(runs, experiment), strict=True))
    if not experiment.first:
        return {}
    last = {each.name: each for each in runs}
    found = [
        {"task": task.name, "group": task.group, "lr": setting.lr}
        | _searched([rows[name] for name in last[task.name].after])
        | _figures(rows[task.name])
        for task in chosen
    ]
    about = {"weights": weights, "data": str(root), "setting": setting.as_dict()}
    return _conclude(experiment, about, found, missing)


def _cells(
    tasks: Sequence[VtabTask],
    root: Path,
    setting: VtabSetting,
    recipe: Callable[[VtabTask, str, float], Recipe],
) -> list[Cell]:
    """Return the runs of all tasks, each after those that choose its learning rate, if it has any.

    Args:
        tasks: to learn
        root: the folder of their data
        setting: how each is learned
        recipe: of a task, its data and a learning rate
    """
    rates = () if setting.sweep is None else sorted(set(setting.sweep or GRID))
    cells: list[Cell] = []
    for task in tasks:
        name, data = task.name, str(root / task.name)
        tried = [
            Cell(
                f"{SWEEP_FOLDER}/{name}-{rate:g}",
                recipe(task, SEARCH + data, rate),
                {"task": name, "lr": rate},
                may_diverge=True,
            )
            for rate in rates
        ]
        names, decide = tuple(each.name for each in tried), best_rate if tried else None
        last = recipe(task, WHOLE + data, setting.lr)
        cells += [*tried, Cell(name, last, {"task": name}, names, decide, may_diverge=True)]
    return cells


def _searched(tried: Sequence[Row]) -> Row:
    """Return what a task's row has of the runs that chose its learning rate, if there were any."""
    return best_rate(tried) | {"sweep": [_figures(row) for row in tried]} if tried else {}


def _figures(row: Row) -> Row:
    """Return what the table has of a run; accuracy None if it diverged."""
    names = ("lr", "accuracy", "images", "seconds", "run")
    note = {"note": row["diverged"]} if "diverged" in row else {}
    return {"accuracy": None} | {key: row[key] for key in names if key in row} | note


def _conclude(
    experiment: Experiment, about: dict[str, Any], rows: list[Row], missing: list[str]
) -> dict[str, Any]:
    """Return the result, once it is written down as a page and as JSON."""
    known = {row["task"]: row["accuracy"] for row in rows if row["accuracy"] is not None}
    result = summary(known) | {
        "benchmark": "vtab-1k",
        **about,
        "tasks": rows,
        "missing": missing,
        "run": str(experiment.out),
        "report": str(experiment.campaign.report),
    }
    write_tables(experiment.campaign.report, page(result, experiment.setup.command))
    experiment.campaign.finish(result)
    return result


def choose(root: Path, names: Sequence[str]) -> tuple[list[VtabTask], list[str]]:
    """Return the tasks to learn, once their data is checked, and the names of those without data.

    Raises:
        DataError: no data for any task, or for one that is named; data that is not VTAB-1k's.
        OptionError: an unknown task.
    """
    check_known(names, BY_NAME, "task")
    found = available(root)
    missing = [task.name for task in TASKS if task.name not in found]
    if lost := [name for name in missing if name in names]:
        raise DataError(f"{root} has no folder {lost[0]}: add it, or leave the task out")
    chosen = [task for task in TASKS if task.name in (names or found) and task.name in found]
    if not chosen:
        raise DataError(
            f"{root} has no folder of any VTAB task, such as {TASKS[0].name} or {TASKS[1].name}"
        )
    for task in chosen:
        open_task(root, task)
    return chosen, missing


def best_rate(tried: Sequence[Row]) -> dict[str, float]:
    """Return the learning rate of the highest validation accuracy, ties to the lowest."""
    return {"lr": tried[best_of(tried) or 0]["lr"]}


def recipe_of(task: VtabTask, weights: str, data: str, setting: VtabSetting, lr: float) -> Recipe:
    """Return what one run learns."""
    crop = setting.augment == "bit" and task.crop
    return named(
        "vit-finetune",
        data,
        weights=weights,
        tune=setting.tune,
        image_size=setting.image_size,
        fit="squash",
        crop=1.0,
        **({"area": KEPT, "aspect": 1.0} if crop else {"area": 1.0}),
        flip=setting.augment == "bit" and task.flip,
        lr=lr,
        steps=setting.steps,
        warmup_steps=round(setting.steps * WARMUP / STEPS),
        batch=setting.batch,
        micro_batch=setting.micro_batch,
        precision=setting.precision,
        seed=setting.seed,
        test_every=max(1.0, setting.steps * setting.batch / IMAGES),  # at the end only
    )
