"""`vitlab.train`: a run from its recipe to its report."""

import time
from pathlib import Path

from vitlab.data.opened_data import OpenedData
from vitlab.data.sources.request import Given
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.public_calls import PLACE, public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.run_reports.report_run import report_run
from vitlab.training.outcome import Run
from vitlab.training.own_code import Hooks
from vitlab.training.run import Invocation, RunRequest, train_and_test
from vitlab.training.tracking import OnLine
from vitlab.training.transform import Transform


@public(recipe=Recipe, out=PLACE)
def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    data: Given | None = None,
    start: Model | None = None,
    resume: bool = False,
    change: bool = False,
    host: Host | None = None,
    on_line: OnLine | None = None,
    transform: Transform | None = None,
    loss: Loss | None = None,
    opened: OpenedData | None = None,
    command: str = "",
    quiet: bool = False,
    began: float | None = None,
) -> Run:
    """Train a model by a recipe, test it, and leave a run folder with a report.

    Under torchrun, all processes share every batch; the first one writes and prints.

    Args:
        recipe: what to learn, from `vitlab.recipe`
        out: the run's folder; None for a new one in `runs/`, named after data and model
        data: what to learn from, in place of `recipe.data.data`: any DATA, or labeled images in
            memory (`vitlab.evaluate` says which); a run of images in memory goes on if it is given
            the same ones
        start: a model to start from, in place of `recipe.start.weights`; it stays as it is
        resume: continue the run in that folder, or the newest of that name, to the same bits on a
            CPU; start it if there is none
        change: with `resume`, continue with other options than before (learning rate, schedule,
            clipping, weight decay and other regularization, augmentation), or other functions; the
            change is kept in `run.toml` and holds from there on
        host: device, workers, checkpoints
        on_line: called with each line of metrics.jsonl as it is written, by the first process: a
            dictionary with its `kind` (`train`; `validation`, `test` or `held-out`; `skipped`,
            `rollback`, `result`), `step`, `epoch` and figures; whatever it raises ends the run,
            which can be resumed
        transform: a function of your own that changes the training images of every step, after the
            crop and before the recipe's augmentation: images, uint8 (B, channels, H, W) on the
            training device, and a `torch.Generator` there, seeded by the run's seed and the step,
            to such images
        loss: a function of your own in place of the recipe's loss: scores, float32 (B, classes),
            and targets, float32 (B, classes), as label smoothing and mixing leave them, to the
            loss of each image, (B,), or to their mean
        opened: data that earlier runs have opened and decoded, and later ones find; the same bits
        quiet: print nothing but warnings
        command: what the user typed, for the report
        began: when the clock of `recipe.budget` was started, by `time.monotonic()`; None for now

    Raises:
        UserError: anything the user can fix (see `vitlab.errors`); what is refused before the
            first step leaves no folder.
        KeyboardInterrupt: a stop was asked for; the state is saved, and `resume` continues.
    """
    request = RunRequest(
        recipe=recipe,
        out=out,
        data=data,
        start=start,
        resume=resume,
        change=change,
        host=host or Host(),
        on_line=on_line,
        hooks=Hooks(transform, loss),
        opened=opened,
        invocation=Invocation(command, began or time.monotonic()),
    )
    outcome = train_and_test(request)
    run = report_run(outcome)
    if on_line is not None and outcome.is_new and run.rank == 0:
        on_line({"kind": "result"} | run.metrics)
    return run
