"""`vitlab.cross_validate`: every image is predicted by a model that did not learn from it."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vitlab import device as devices
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.partition import partitioned
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.protocol import Source
from vitlab.errors import DivergedError, OptionError
from vitlab.evaluation.metrics import figures
from vitlab.evaluation.predictions import Predictions, predict
from vitlab.files import staged_file
from vitlab.models.model import Model
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.runs import default_folder
from vitlab.transfer.campaign_folder import CampaignFolder
from vitlab.transfer.trials import Campaign, Outcome, Trial, begin
from vitlab.units import percent
from vitlab.weights.load import load

PREDICTIONS = "predictions.csv"
FIGURES = {  # of single labels and of several, as tables call them
    "accuracy": "accuracy",
    "top5": "top-5",
    "nll": "NLL",
    "ece": "ECE",
    "map": "mAP",
    "micro_f1": "F1",
    "macro_f1": "F1 per class",
    "bce": "cross-entropy",
}
SHARES = ("accuracy", "top5", "ece", "map", "micro_f1", "macro_f1")


def cross_validate(
    recipe: Recipe,
    out: str | Path | None = None,
    folds: int = 5,
    *,
    start: Model | None = None,
    resume: bool = False,
    host: Host | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Train once per fold, each time testing on the images of that fold.

    The folds are parts of the training images, or of all images if the data comes unsplit: equal
    in size and in classes (stratified) to within one image, and the same for every recipe and
    seed. A test split that the data has is left alone, for the one model that is chosen in the end.

    Args:
        recipe: what to learn
        out: the folder of all runs; None for a name in `runs/` made of data, recipe and seed
        folds: their number, at least 2
        start: a model to start from, in place of `recipe.start.weights`
        resume: continue in that folder, repeating no finished run; start if there is none
        host: device, workers, checkpoints
        command: what the user typed, for the report

    Returns:
        The figures of all out-of-fold predictions together (the keys of `vitlab.evaluate`),
        `folds`, `mean` and `std` (the sample standard deviation) of each figure over the folds,
        `runs`, and the places of the predictions (CSV) and of the report; empty in every process
        but the first of those that torchrun started.

    Raises:
        OptionError: fewer than two folds, or a recipe with a fold of its own.
        DivergedError: the run of a fold diverged.
        UserError: as `vitlab.train`.
    """
    if folds < 2:
        raise OptionError(f"folds must be at least 2, not {folds}")
    if recipe.data.fold or recipe.data.dev_share:
        raise OptionError("folds are chosen by the campaign: leave fold and dev_share out")
    words = (recipe.data.data, recipe.recipe, recipe.seed, f"{folds}-folds")
    folder = CampaignFolder(out or default_folder(*words))
    parts = [f"{part}/{folds}" for part in range(1, folds + 1)]
    trials = [
        Trial(f"fold-{part.replace('/', '-of-')}", recipe.changed(fold=part), f"fold {part}")
        for part in parts
    ]
    host = host or Host()
    campaign = begin(
        "cross-validation",
        folder,
        {"folds": folds},
        recipe,
        resume=resume,
        host=host,
        command=command,
    )
    rows = [
        _row(part, each) for part, each in zip(parts, campaign.outcomes(trials, start), strict=True)
    ]
    if not campaign.first:
        return {}
    return folder.record["result"] or _conclude(campaign, trials, rows)


def _row(fold: str, outcome: Outcome) -> dict[str, Any]:
    """Return a row of the table in JSON.

    Raises:
        DivergedError: the run diverged: a mean over the others would be too good.
    """
    if outcome.run is None:
        raise DivergedError(f"fold {fold} diverged: {outcome.diverged}, and another --out")
    metrics = outcome.run.metrics
    kept = [key for key in (*FIGURES, "images", "seconds") if key in metrics]
    return {"fold": fold} | {key: metrics[key] for key in kept} | {"run": str(outcome.folder.path)}


def _conclude(
    campaign: Campaign, trials: list[Trial], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the figures of all folds together, and write down predictions, result and page."""
    names = [key for key in FIGURES if key in rows[0]]
    values = {name: [row[name] for row in rows] for name in names}
    file = campaign.folder.path / PREDICTIONS
    result = write_predictions(file, campaign, trials) | {
        "folds": len(rows),
        "mean": {name: float(np.mean(values[name])) for name in names},
        "std": {name: float(np.std(values[name], ddof=1)) for name in names},
        "runs": rows,
        "predictions": str(file),
        "run": str(campaign.folder.path),
        "report": str(campaign.folder.report),
    }
    write_tables(campaign.folder.report, _page(campaign, trials[0].recipe, result))
    campaign.folder.finish(result)
    return result


def write_predictions(file: Path, campaign: Campaign, trials: list[Trial]) -> dict[str, float]:
    """Write a row per image, predicted by the model of its fold; return the figures of all.

    Columns: image, label, fold, predicted, and `p(CLASS)` for each class. Several labels of an
    image are joined by semicolons; predicted are then those of a probability above 0.5.

    Raises:
        DiskError: the file cannot be written.
    """
    found: list[Predictions] = []
    with staged_file(file) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        for trial in trials:
            source, done = _predicted(campaign, trial)
            if not found:
                chances = (f"p({name})" for name in source.classes)
                writer.writerow(["image", "label", "fold", "predicted", *chances])
            writer.writerows(_lines(source, done, trial.recipe.data.fold))
            found.append(done)
    rows = np.concatenate([each.probabilities for each in found])
    truth = np.concatenate([each.labels.values for each in found])
    labels = MultiLabels(truth) if found[0].labels.several else SingleLabels(truth)
    return figures(rows, labels)


def _predicted(campaign: Campaign, trial: Trial) -> tuple[Source, Predictions]:
    """Return the images of a fold, and what its model makes of them."""
    options, host = trial.recipe.data, campaign.host
    source = partitioned(open_data(options.data, options.test_fraction), options).test
    model = load(campaign.folder.run(trial.name).path)
    where, precision = devices.choose(host.device), trial.recipe.precision
    return source, predict(model, source, device=where, precision=precision, workers=host.workers)


def _lines(source: Source, done: Predictions, fold: str) -> Iterator[list[Any]]:
    """Yield a row for each image that could be decoded."""
    classes, several = source.classes, done.labels.several
    for place, index in enumerate(done.indices.tolist()):
        chances = done.probabilities[place]
        chosen = np.flatnonzero(chances > 0.5) if several else [chances.argmax()]
        truth = done.labels.classes_of(place)
        label, predicted = (";".join(classes[int(n)] for n in each) for each in (truth, chosen))
        yield [source.name(index), label, fold, predicted, *(f"{chance:.6g}" for chance in chances)]


def _page(campaign: Campaign, recipe: Recipe, result: dict[str, Any]) -> TablePage:
    """Return the page of all folds."""
    names = list(result["mean"])
    rows = [_cells(row["fold"], row, names) for row in result["runs"]]
    rows.append(_cells("mean", result["mean"], names))
    rows.append(_cells("standard deviation", result["std"], names))
    rows.append(_cells("all predictions together", result, names))
    head = ("fold", *(FIGURES[name] for name in names))
    table = Table(
        "Folds", head, rows, note="Each model was tested on images it did not learn from."
    )
    mean, std = result["mean"], result["std"]
    first = names[0]
    lead = (
        f"{FIGURES[first]} {percent(mean[first])} ± {percent(std[first])} (mean and standard "
        f"deviation of {result['folds']} folds, {result['images']:,} images)."
    )
    notes = [f"A row per image with its probabilities: {PREDICTIONS}, beside this page."]
    title = f"Cross-validation on {recipe.data.data}"
    return TablePage(title, lead, [table], notes=notes, command=campaign.command)


def _cells(title: str, values: dict[str, Any], names: list[str]) -> tuple[str, ...]:
    texts = (percent(values[name]) if name in SHARES else f"{values[name]:.3f}" for name in names)
    return (title, *texts)
