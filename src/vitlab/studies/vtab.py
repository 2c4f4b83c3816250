"""`vitlab.vtab`: fine-tune weights on each task of VTAB-1k (ViT paper, section 4.1 and Figure 2).

One setting for all tasks: 2,500 steps of SGD in batches of 512 at 384 pixels, learning rate 0.01
(paper, Table 4), momentum 0.9, a cosine after 200 steps of warm-up, a zero classifier (scenic's
configuration). The 800 and 200 training images are learned from together. How the paper cropped
is not published: see `VtabSetting.augment`.

A mean over fewer tasks than belong to it is never given as the mean: it stands under another name,
with the number of tasks.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitlab.data.vtab import BY_NAME, GROUPS, SEARCH, TASKS, WHOLE, VtabTask, available, open_task
from vitlab.errors import DataError
from vitlab.experiments.cells import FAILED, Cell, Row, Setup, begin, run_cells
from vitlab.experiments.several import STEPS, WARMUP, VtabSetting
from vitlab.experiments.sweep import best_of
from vitlab.experiments.timing import dry_run as costs_of
from vitlab.files import SWEEP_FOLDER
from vitlab.options import check_known
from vitlab.places import On
from vitlab.recipes.named import recipe as named
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.page import ReportTable, TablePage
from vitlab.runs.naming import folder_name
from vitlab.studies.base import table as printed
from vitlab.units import percent

IMAGES = 1000  # to learn from
GRID = (0.001, 0.003, 0.01, 0.03)  # ViT paper, Table 4, for small data sets
# Arguments of `vitlab.load` that a recipe calls otherwise.
OF_RECIPE = {"name": "weights_name", "part": "weights_part", "drop": "weights_drop"}
KEPT = (384 / 448) ** 2  # of an image's area, by a crop of 384 from 448 pixels
NAMES = [task.name for task in TASKS]
PAPER = {
    model: dict(zip(NAMES, (value / 100 for value in values), strict=True))
    for model, values in printed("vtab").items()
}
HEAD = ("task", "lr", "accuracy", *PAPER)


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
    on: On = "",
    command: str = "",
    dry_run: bool = False,
) -> dict[str, Any]:
    """Fine-tune on each task that there is data for.

    Args:
        weights: anything that `vitlab.load` takes
        root: the folder of the tasks' data (see `vitlab.data.vtab`)
        out: folder that gets a run folder for each task; None for a new one, `runs/vtab-WEIGHTS`
        tasks: names of tasks; none for all that there is data for
        setting: how each task is learned
        known: facts that the weights file does not state, as for `vitlab.load`: name, heads, …
        resume: continue in that folder, repeating no finished run; start if there is none
        host: device, workers, checkpoints
        jobs: runs at the same time, as for `vitlab.sweep`
        cells: `0/8` for the first of eight processes of an array, as for `vitlab.sweep`
        on: `ray` for runs on a cluster, as for `vitlab.sweep`
        command: what the user typed, for the reports
        dry_run: only estimate the cost, and leave nothing behind

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
    every = [cell for own in by_task.values() for cell in own]
    setup = Setup(host or Host(), command, resume, jobs=jobs, cells=cells, on=on)
    if dry_run:
        return costs_of(every, setup)
    base = recipe_of(TASKS[0], weights, "", setting, setting.lr).changed(**given)
    name = folder_name("vtab", weights)
    experiment = begin("vtab", {"data": str(root)}, base, out, name, setup)
    if missing:
        experiment.say(f"no data for {len(missing)} of {len(TASKS)} tasks: {', '.join(missing)}")
    rows = run_cells(every, experiment)
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

    def cell(name: str, part: str, lr: float, **more: Any) -> Cell:
        recipe = recipe_of(task, weights, f"{part}{root / task.name}", setting, lr)
        labels = {"task": task.name, "lr": lr}
        recipe = recipe.changed(**given)
        return Cell(name, recipe, labels, may_diverge=True, kind=task.name, **more)

    rates = () if setting.sweep is None else sorted(set(setting.sweep or GRID))
    names = [f"{SWEEP_FOLDER}/{task.name}-{rate:g}" for rate in rates]
    tried = [cell(name, SEARCH, rate) for name, rate in zip(names, rates, strict=True)]
    settle = (lambda own, rows: own.changed(lr=best_of(rows)["lr"])) if names else None
    return [*tried, cell(task.name, WHOLE, setting.lr, after=tuple(names), settle=settle)]


def _figures(row: Row) -> Row:
    """Return what the table has of a run; accuracy None and a note if it diverged."""
    names = ("lr", "accuracy", "images", "seconds", "run")
    note = {"accuracy": None, "note": row[FAILED]} if FAILED in row else {}
    return {key: row[key] for key in names if key in row} | note


def choose(root: Path, names: Sequence[str]) -> tuple[list[VtabTask], list[str]]:
    """Return the tasks to learn, once their data is checked, and the names of those without data.

    Raises:
        DataError: no data for any task, or for one that is named; data that is not VTAB-1k's.
        OptionError: an unknown task.
    """
    check_known(names, BY_NAME, "task")
    found = available(root)
    missing = [name for name in NAMES if name not in found]
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


def summary(accuracy: Mapping[str, float]) -> dict[str, Any]:
    """Return the means of each group and of all tasks (Figure 2).

    Args:
        accuracy: of each finished task, by its name

    Returns:
        accuracy (the mean of all 19 tasks, None if some are missing), done, of, mean_of_done, and
        groups: the same of each group.
    """
    groups = {
        group: _mean([task.name for task in TASKS if task.group == group], accuracy)
        for group in GROUPS
    }
    return _mean(NAMES, accuracy) | {"groups": groups}


def _mean(names: Sequence[str], accuracy: Mapping[str, float]) -> dict[str, Any]:
    known = [accuracy[name] for name in names if name in accuracy]
    mean = sum(known) / len(known) if known else None
    return {
        "accuracy": mean if len(known) == len(names) else None,
        "done": len(known),
        "of": len(names),
        "mean_of_done": mean,
    }


def table(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the tasks and the means as text, in the columns of `HEAD`."""
    ours, lines = {row["task"]: row for row in result["tasks"]}, list[tuple[str, ...]]()
    every = [result, *map(summary, PAPER.values())]
    for group in GROUPS:
        for task in TASKS:
            if task.group == group:
                theirs = [percent(values[task.name]) for values in PAPER.values()]
                own = _ours(ours.get(task.name), task.name in result["missing"])
                lines.append((task.title, *own, *theirs))
        lines.append(_line(group, *(each["groups"][group] for each in every)))
    return [*lines, _line("all", *every)]


def _ours(row: Row | None, missing: bool) -> tuple[str, str]:
    """Return the learning rate and the accuracy of a task."""
    if row is None:
        return "", "no data" if missing else "not run"
    accuracy = row["accuracy"]
    return f"{row['lr']:g}", FAILED if accuracy is None else percent(accuracy)


def _line(title: str, mean: dict[str, Any], *theirs: dict[str, Any]) -> tuple[str, ...]:
    """Return the line of a mean, which says so if tasks are missing."""
    head, text, known = f"mean, {title}", "", mean["mean_of_done"]
    if mean["accuracy"] is None:
        head = f"{mean['done']} of {mean['of']} {title}"
    if known is not None:
        text = percent(known) if mean["accuracy"] is not None else f"({percent(known)})"
    return (head, "", text, *(percent(each["accuracy"]) for each in theirs))


def page(result: dict[str, Any]) -> TablePage:
    """Return the page of a result: the groups as in Figure 2, and every task."""
    lines = table(result)
    titles = {task.title for task in TASKS}
    lead = remark(result) or f"Mean of all 19 tasks: {percent(result['accuracy'])}."
    groups = [(line[0], *line[2:]) for line in lines if line[0] not in titles]
    about = ", ".join(f"{key} {value}" for key, value in result["setting"].items())
    missing = [f"No data: {', '.join(result['missing'])}."] if result["missing"] else []
    return TablePage(
        f"VTAB-1k from {result['weights']}",
        lead,
        [ReportTable("Groups", (HEAD[0], *HEAD[2:]), groups), ReportTable("Tasks", HEAD, lines)],
        notes=[
            *missing,
            "The other columns: ViT paper, Table 9; S4L: VTAB's own table.",
            f"Setting: {about}.",
        ],
    )


def remark(result: dict[str, Any]) -> str:
    """Return what must be said below the table if tasks are missing; else nothing."""
    if result["accuracy"] is not None:
        return ""
    return (
        f"In parentheses: means of the finished tasks alone ({result['done']} of {result['of']}), "
        "not to be compared with the paper's."
    )
