"""`vitlab.vtab`: fine-tune weights on each task of VTAB-1k (ViT paper, section 4.1 and Figure 2).

One setting for all tasks: 2,500 steps of SGD in batches of 512 at 384 pixels, learning rate 0.01
(paper, Table 4), momentum 0.9, a cosine after 200 steps of warm-up, a zero classifier (scenic's
configuration). The 800 and 200 training images are learned from together. How the paper cropped
is not published: see `VtabSetting.augment`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitlab.data.vtab import BY_NAME, SEARCH, TASKS, WHOLE, VtabTask, available, open_task
from vitlab.errors import DataError
from vitlab.experiments.cells import Cell, Setup, begin, run_cells
from vitlab.experiments.statistics import Row
from vitlab.experiments.sweep import best_of
from vitlab.experiments.vtab_scores import page, summary
from vitlab.experiments.vtab_setting import GRID, STEPS, WARMUP, VtabSetting
from vitlab.files import SWEEP_FOLDER
from vitlab.options import check_known
from vitlab.recipes.named import recipe as named
from vitlab.recipes.recipe import Host, Recipe
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
    by_task = {task: _cells(task, weights, root, setting, given) for task in chosen}
    base = recipe_of(TASKS[0], weights, "", setting, setting.lr).changed(**given)
    setup = Setup(host or Host(), command, resume, jobs=jobs, cells=cells)
    name = folder_name("vtab", weights)
    experiment = begin("vtab", {"data": str(root)}, base, out, name, setup)
    if missing:
        experiment.say(f"no data for {len(missing)} of {len(TASKS)} tasks: {', '.join(missing)}")
    rows = run_cells([cell for own in by_task.values() for cell in own], experiment)
    if not experiment.first:
        return {}
    found: list[Row] = []
    for task, (*tried, last) in by_task.items():
        more = {"sweep": [_figures(rows[cell.name]) for cell in tried]} if tried else {}
        found.append({"task": task.name, "group": task.group} | more | _figures(rows[last.name]))
    result = summary({row["task"]: row["accuracy"] for row in found if "note" not in row}) | {
        "benchmark": "vtab-1k",
        "weights": weights,
        "data": str(root),
        "tasks": found,
        "missing": missing,
        "setting": setting.as_dict(),
        **experiment.places,
    }
    return experiment.finish(result, page(result))


def _cells(
    task: VtabTask, weights: str, root: Path, setting: VtabSetting, given: dict[str, Any]
) -> list[Cell]:
    """Return the runs of a task: those that choose its learning rate, if any do, and the last.

    Args:
        task: to learn
        weights: to start from
        root: the folder of the tasks' data
        setting: how it is learned
        given: further options of the recipe
    """

    def cell(name: str, part: str, lr: float, after: tuple[str, ...] = ()) -> Cell:
        recipe = recipe_of(task, weights, f"{part}{root / task.name}", setting, lr)
        labels, decide = {"task": task.name, "lr": lr}, best_rate if after else None
        return Cell(name, recipe.changed(**given), labels, after, decide, may_diverge=True)

    rates = () if setting.sweep is None else sorted(set(setting.sweep or GRID))
    tried = [cell(f"{SWEEP_FOLDER}/{task.name}-{rate:g}", SEARCH, rate) for rate in rates]
    return [*tried, cell(task.name, WHOLE, setting.lr, tuple(each.name for each in tried))]


def _figures(row: Row) -> Row:
    """Return what the table has of a run; accuracy None and a note if it diverged."""
    names = ("lr", "accuracy", "images", "seconds", "run")
    note = {"accuracy": None, "note": row["diverged"]} if "diverged" in row else {}
    return {key: row[key] for key in names if key in row} | note


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
    crops: dict[str, Any] = {"area": KEPT, "aspect": 1.0} if crop else {"area": 1.0}
    return named(
        "vit-finetune",
        data,
        weights=weights,
        tune=setting.tune,
        image_size=setting.image_size,
        fit="squash",
        crop=1.0,
        **crops,
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
