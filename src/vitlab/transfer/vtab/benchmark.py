"""`vitlab.vtab`: fine-tune weights on each task of VTAB-1k (ViT paper, section 4.1 and Figure 2).

One setting for all tasks: 2,500 steps of SGD in batches of 512 at 384 pixels, learning rate 0.01
(paper, Table 4), momentum 0.9, a cosine after 200 steps of warm-up, a zero classifier (scenic's
configuration). The 800 and 200 training images are learned from together. How the paper cropped
is not published: see `Setting.augment`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.data.vtab import BY_NAME, SEARCH, TASKS, WHOLE, VtabTask, available, open_task
from vitlab.distributed.launch import joined
from vitlab.errors import DataError, DivergedError, RunError
from vitlab.files import is_empty, write_text
from vitlab.options import check_known
from vitlab.progress import say
from vitlab.recipes.named import recipe as named
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import write_tables
from vitlab.runs.naming import folder_name
from vitlab.training.run import train
from vitlab.training.setup.whereabouts import placed
from vitlab.transfer.vtab.scores import page, summary
from vitlab.transfer.vtab.setting import GRID, STEPS, WARMUP, Setting

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
    setting: Setting | None = None,
    known: dict[str, Any] | None = None,
    resume: bool = False,
    host: Host | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Fine-tune on each task that there is data for, one run after the other.

    Args:
        weights: anything that `vitlab.load` takes
        root: the folder of the tasks' data (see `vitlab.data.vtab`)
        out: folder that gets one run folder per task; None for a new one, `runs/vtab-WEIGHTS`
        tasks: names of tasks; none for all that there is data for
        setting: how each task is learned
        known: what the file of the weights may not say, as `vitlab.load` takes it: name, heads, …
        resume: continue in that folder, repeating no finished run; start if there is none
        host: device, workers, checkpoints
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
        UserError: anything that `vitlab.train` raises, except that a run diverged.
    """
    setting, host, root = setting or Setting(), host or Host(), Path(root).expanduser()
    chosen, missing = choose(root, tasks)
    with joined(host.device, host.timeout) as (world, _):
        first = world.first
        with world.agreed():
            out = placed(out, folder_name("vtab", weights), resume=resume, world=world)
            if first and not (resume or world.restarted):
                _check_free(out)
    if first and missing:
        say(f"no data for {len(missing)} of {len(TASKS)} tasks: {', '.join(missing)}")
    bench, rows = _Bench(weights, root, out, setting, host, command, known or {}), []
    for number, task in enumerate(chosen, 1):
        if first:
            say(f"task {number} of {len(chosen)}: {task.name}")
        rows.append(bench.row(task))
    if not first:
        return {}
    return _concluded(bench, rows, missing)


def _concluded(bench: "_Bench", rows: list[dict[str, Any]], missing: list[str]) -> dict[str, Any]:
    """Return the result, once it is written down as a page and as JSON."""
    known = {row["task"]: row["accuracy"] for row in rows if row["accuracy"] is not None}
    result = summary(known) | {
        "benchmark": "vtab-1k",
        "weights": bench.weights,
        "data": str(bench.root),
        "tasks": rows,
        "missing": missing,
        "setting": bench.setting.as_dict(),
        "run": str(bench.out),
        "report": str(bench.out / "report.html"),
    }
    write_tables(bench.out / "report.html", page(result, bench.command))
    write_text(bench.out / "vtab.json", json.dumps(result, indent=1) + "\n")
    return result


def _check_free(folder: Path) -> None:
    if not is_empty(folder):
        raise RunError(
            f"{folder} is not empty: pass --resume to continue the runs in it, or choose another "
            "--out"
        )


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


@dataclass(frozen=True)
class _Bench:
    """Where the weights, the data and the runs are, and how each task is learned."""

    weights: str
    root: Path
    out: Path
    setting: Setting
    host: Host
    command: str
    known: dict[str, Any]

    def row(self, task: VtabTask) -> dict[str, Any]:
        """Learn one task; return its row of the table."""
        row: dict[str, Any] = {"task": task.name, "group": task.group, "lr": self.setting.lr}
        if self.setting.sweep is not None:
            row["sweep"] = [
                self.learn(task, SEARCH, rate, self.out / "sweep" / f"{task.name}-{rate:g}")
                for rate in sorted(set(self.setting.sweep or GRID))
            ]
            row["lr"] = best_rate(row["sweep"])
        return row | self.learn(task, WHOLE, row["lr"], self.out / task.name)

    def learn(self, task: VtabTask, part: str, lr: float, folder: Path) -> dict[str, Any]:
        """Train one run, or continue it; return its figures, accuracy None if it diverged."""
        data = f"{part}{self.root / task.name}"
        recipe = recipe_of(task, self.weights, data, self.setting, lr).changed(
            **{OF_RECIPE.get(name, name): value for name, value in self.known.items()}
        )
        found: dict[str, Any] = {"lr": lr, "accuracy": None, "run": str(folder)}
        try:
            done = train(
                recipe, folder, resume=folder.exists(), host=self.host, command=self.command
            )
        except DivergedError as error:
            return found | {"note": str(error)}
        keys = ("accuracy", "images", "seconds")
        return found | {key: done.metrics[key] for key in keys}


def best_rate(tried: Sequence[dict[str, Any]]) -> float:
    """Return the learning rate of the highest validation accuracy, ties to the lowest."""
    known = [each for each in tried if each["accuracy"] is not None]
    return float(
        max(known or tried[:1], key=lambda each: (each["accuracy"] or 0, -each["lr"]))["lr"]
    )


def recipe_of(task: VtabTask, weights: str, data: str, setting: Setting, lr: float) -> Recipe:
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
