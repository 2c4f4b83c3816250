"""`vitlab.cross_validate`: every image is predicted by a model that did not learn from it."""

from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.errors import OptionError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.examined import reopened
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.label_errors import Suspects, find_label_errors, write_suspects
from vitlab.evaluation.predictions import predict
from vitlab.evaluation.rows import Layout, table_to
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.progress import public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.runs.naming import run_name
from vitlab.training.step.transform import Transform
from vitlab.transfer.campaign_folder import MOST, CampaignFolder
from vitlab.transfer.spread import lead_of, learned_before, mean_and_std, row_of, table_of
from vitlab.transfer.trials import Campaign, Parts, Trial, begin, campaign_place
from vitlab.units import percent
from vitlab.weights.load import load

PREDICTIONS = "predictions.csv"
LABEL_ERRORS = "label-errors.csv"
LISTED = 50  # likely label errors on the page


@public(recipe=Recipe)
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
    command: str = "",
    quiet: bool = False,
) -> dict[str, Any]:
    """Train once per fold, each time testing on the images of that fold.

    The folds are parts of the training images, or of all images if the data comes unsplit: about
    equal in size, decided by a hash of each image (`data.holdout`), and the same for every recipe
    and seed. A test split that the data has is left alone, for the one model that is chosen in the
    end.

    Args:
        recipe: what to learn
        out: the folder of all runs; None for a new one in `runs/`, named after data and model
        folds: their number, at least 2
        start: a model to start from, in place of `recipe.start.weights`
        resume: continue in that folder, repeating no finished run; start if there is none
        host: device, workers, checkpoints
        transform: a function of your own on the training images, as in `vitlab.train`
        loss: a function of your own in place of the recipe's loss, as in `vitlab.train`
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
        UserError: as `vitlab.train`.
    """
    if not 2 <= folds <= MOST:
        raise OptionError(f"folds must be at least 2 and at most {MOST}, not {folds}")
    if recipe.data.fold or recipe.data.dev_share:
        raise OptionError("folds are chosen by the campaign: leave fold and dev_share out")
    name = run_name(recipe, start, f"{folds}-folds")
    folder = CampaignFolder(campaign_place(out, name, resume=resume, host=host))
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
        parts=Parts(start, transform, loss),
    )
    outcomes = zip(parts, campaign.outcomes(trials), strict=True)
    rows = [row_of("fold", part, each) for part, each in outcomes]
    if not campaign.first:
        return {}
    return folder.record["result"] or _conclude(campaign, trials, rows)


def _conclude(
    campaign: Campaign, trials: list[Trial], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the figures of all folds together, and write down predictions, result and page."""
    file = campaign.folder.path / PREDICTIONS
    figures, suspects = write_predictions(file, campaign, trials)
    before = learned_before(rows)
    for note in before.get("notes", ()):
        campaign.say(note)
    result = figures | {
        **before,
        "label_errors": write_suspects(file.with_name(LABEL_ERRORS), suspects),
        "folds": len(rows),
        **mean_and_std(rows),
        "runs": rows,
        "predictions": str(file),
        "run": str(campaign.folder.path),
        "report": str(campaign.folder.report),
    }
    page = _page(campaign, trials[0].recipe, result, suspects)
    write_tables(campaign.folder.report, page)
    campaign.folder.finish(result)
    return result


def write_predictions(
    file: Path, campaign: Campaign, trials: list[Trial]
) -> tuple[dict[str, Any], Suspects]:
    """Write a row per image, predicted by the model of its fold.

    The columns are those of `vitlab evaluate --out` (evaluation/rows.py), and `fold`.

    Returns:
        The figures of all predictions together, and the labels that are likely wrong.

    Raises:
        DiskError: the file cannot be written.
    """
    sources = [reopened(campaign.folder.run(trial.name)).test for trial in trials]
    layouts = [
        Layout(source, truth=True, more={"fold": trial.recipe.data.fold})
        for source, trial in zip(sources, trials, strict=True)
    ]
    host, found = campaign.host, []
    with table_to(file, layouts[0]) as write:
        for trial, layout in zip(trials, layouts, strict=True):
            done = predict(
                load(campaign.folder.run(trial.name).path),
                layout.source,
                Compute(host.device, engine="plain", workers=host.workers),
                use=lambda part, layout=layout: write(layout.columns(part)),  # type: ignore[misc]
            )
            found.append(done)
    rows = np.concatenate([each.probabilities for each in found])
    truth = np.concatenate([each.labels.values for each in found])
    several = found[0].labels.several
    labels = MultiLabels(truth) if several else SingleLabels(truth)
    names = [
        source.name(index)
        for source, done in zip(sources, found, strict=True)
        for index in done.indices.tolist()
    ]
    doubts = find_label_errors(rows, labels)
    suspects = Suspects(doubts, rows, sources[0].classes, names.__getitem__, several)
    return with_intervals(rows, labels), suspects


def _page(
    campaign: Campaign, recipe: Recipe, result: dict[str, Any], suspects: Suspects
) -> TablePage:
    """Return the page of all folds."""
    table = table_of(
        "Folds",
        "fold",
        result,
        {"all predictions together": result},
        "Each model was tested on images that its own run did not learn from.",
    )
    lead = lead_of(result, f"{result['folds']} folds")
    tables = [table, *_doubts(suspects)]
    notes = [
        *result.get("notes", ()),
        f"A row per image with its probabilities: {PREDICTIONS}, beside this page.",
    ]
    title = f"Cross-validation on {recipe.data.data}"
    return TablePage(title, lead, tables, notes=notes, command=campaign.command)


def _doubts(suspects: Suspects) -> list[Table]:
    """Return the table of likely label errors, if there are any."""
    found, head = suspects.found, ("image", "label", "likely", "probability of the label")
    if not found.suspects:
        return []
    rows = []
    for each in found.suspects[:LISTED]:
        given, better = (
            ", ".join(suspects.classes[n] for n in own) or "none"
            for own in (each.given, each.better)
        )
        rows.append((suspects.name(each.place), given, better, percent(each.own)))
    what = "answers" if suspects.several else "labels"
    note = (
        f"By confident learning (Northcutt et al., 2021) from predictions of models that did not "
        f"learn from the image: {len(found.suspects):,} of {found.images:,} images, likeliest "
        f"error first; about {found.estimated:,.0f} wrong {what} are estimated in all. The first "
        f"{len(rows)} are below, all of them in {LABEL_ERRORS}, beside this page."
    )
    return [Table("Likely label errors", head, rows, note=note)]
