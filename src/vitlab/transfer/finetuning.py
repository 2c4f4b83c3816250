"""`vitlab.finetune`: new data, trained weights."""

from pathlib import Path
from typing import Any, Unpack

from vitlab.data.sources.request import Given
from vitlab.keywords import FinetuneKeywords
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.public_calls import PLACE, public
from vitlab.recipes.named import BACKBONE
from vitlab.recipes.named import recipe as named
from vitlab.recipes.pretext import named_task
from vitlab.recipes.recipe import Host
from vitlab.recipes.start import Tune
from vitlab.run_reports.train import train
from vitlab.training.outcome import Run
from vitlab.training.tracking import OnLine
from vitlab.training.transform import Transform


@public(recipe=str, out=PLACE)
def finetune(
    data: Given,
    weights: str | Path | Model | None = None,
    out: str | Path | None = None,
    tune: Tune = "all",
    *,
    recipe: str = "finetune",
    resume: bool = False,
    change: bool = False,
    host: Host | None = None,
    on_line: OnLine | None = None,
    transform: Transform | None = None,
    loss: Loss | str | None = None,
    quiet: bool = False,
    **fields: Unpack[FinetuneKeywords],
) -> Run:
    """Fine-tune trained weights on some data, test the model and write a report.

    The same as `vitlab.train(vitlab.recipe(recipe, data, weights=weights, tune=tune, **fields))`.

    Args:
        data: as for training, also labeled images in memory
        weights: anything that `vitlab.load` takes, or a model in hand; None for those that the
            recipe names
        out: the run's folder; None for a new one in `runs/`, named after data and weights
        tune: what to train: all, attention, ffn, head, last, norms or lora; always with the
            classifier
        recipe: the recipe to start from; with `targets`, which are numbers to learn, `regress`;
            with task="segment" that, from the folder of a run of `vitlab.probe`
        resume: continue the run in that folder; start it if there is none
        change: with `resume`, continue with other options than before, as `vitlab.train`
        host: device, workers, checkpoints
        on_line: called with each line of metrics.jsonl, as in `vitlab.train`
        transform: a function of your own on the training images, as in `vitlab.train`
        loss: a function of your own in place of the recipe's loss, as in `vitlab.train`, or
            the name of one of the recipe's losses
        quiet: print nothing but warnings
        fields: any option of the recipe or its model: `lr=1e-3`, `image_size=384`

    Raises:
        UserError: as `vitlab.train`.
    """
    start = weights if isinstance(weights, Model) else None
    given: dict[str, Any] = {**fields}
    if start is not None:
        given = {"model": ""} | given
    elif weights is not None:
        given["weights"] = str(weights)
    if isinstance(loss, str):
        given["loss"], loss = loss, None
    if recipe == "finetune" and (task := named_task(given).get("task")) in ("regress", "segment"):
        recipe = task
        if task == "regress" and start is None:
            given = {"weights": BACKBONE} | given
    options = named(recipe, tune=tune, **given)
    return train(
        options,
        out,
        data=data,
        start=start,
        resume=resume,
        change=change,
        host=host,
        on_line=on_line,
        transform=transform,
        loss=loss,
    )
