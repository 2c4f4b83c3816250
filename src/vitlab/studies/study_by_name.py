"""`vitlab.study`: a table or a figure of a paper, on the user's data, within a budget."""

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from vitlab.errors import OptionError
from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.progress import public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.naming import folder_name
from vitlab.studies.base import Base, small
from vitlab.studies.campaign import Asked, Campaign
from vitlab.studies.design import Study
from vitlab.studies.study_names import GRIDS, PAPER_BUDGET, budget_seconds


@public(what=(str, Study))
def study(
    what: str | Study,
    data: str = "digits",
    out: str | Path | None = None,
    *,
    budget: str = "",
    epochs: float = 0.0,
    seeds: int = 3,
    see: float = 0.0,
    only: Sequence[str] = (),
    lr_grid: Sequence[float] = (),
    downstream: str = "",
    at_once: int = 0,
    dry_run: bool = False,
    recipe: Recipe | None = None,
    host: Host | None = None,
    command: str = "",
    quiet: bool = False,
) -> dict[str, Any]:
    """Run a study, or go on with it; finished runs are not repeated.

    Args:
        what: the name of a study, as `vitlab study --help` lists them, or a `Study` of your own
        data: what to learn from
        out: its folder; None for `runs/study-NAME-DATA`
        budget: time for all runs, such as `10m` or `2h`, into which their length is fitted (empty:
            10 minutes); `paper` for the paper's own recipes
        epochs: length of the runs, in place of a budget
        seeds: runs of each row
        see: a difference of accuracies, in percentage points, that the runs are to see with a
            chance of 80%; it chooses their number, by the deviations of this folder's result or of
            the studies in docs/results
        only: names of the rows (empty: all)
        lr_grid: factors of each row's learning rate to choose from on held-out training images
            (empty: the study's own, if it has any)
        downstream: data that pre-trained models are transferred to (empty: the same data)
        at_once: runs at the same time, each in a process of its own (0: one per core for small
            models on a CPU, else one); a script that asks for several needs
            `if __name__ == "__main__":`
        dry_run: only say what the study would cost, and leave nothing behind
        recipe: what the arms start from, in place of the small recipe for the data
        host: where to train
        command: what the user typed
        quiet: print nothing but warnings

    Returns:
        The JSON of `vitlab study NAME`: `rows` with `values`, `mean` and `std` of each arm,
        `claims` with their verdicts, `table`; with `dry_run`, `runs`, `seeds`, `sees`, `epochs`,
        `macs` and `seconds`. Empty in every process but the first of torchrun's.

    Raises:
        OptionError: an unknown study or row, or a budget that is too small.
        RunError: the folder is in the way, or its study was begun otherwise.
        UserError: as `vitlab.train`, except that a run diverged.
        KeyboardInterrupt: a stop was asked for; the same call goes on.
    """
    allowed = budget_seconds(budget, epochs)
    name = what if isinstance(what, str) else re.sub(r"[^a-z0-9]+", "-", what.title.lower())
    recipe = recipe or small(data)
    asked = Asked(name, allowed, epochs, seeds, see, tuple(only), tuple(lr_grid), at_once)
    campaign = Campaign(
        grid_study(what) if isinstance(what, str) else what,
        Base(recipe, budget == PAPER_BUDGET, downstream),
        asked,
        CampaignFolder(out or folder_name(f"study-{name}", recipe.data.data)),
        host or Host(),
        command,
    )
    return campaign.plan() if dry_run else campaign.run()


def grid_study(name: str) -> Study:
    """Return a study by its name.

    Raises:
        OptionError: unknown, or a study of one run, which is a command only.
    """
    if name not in GRIDS:
        raise OptionError(f"unknown study {name!r}: choose one of {', '.join(GRIDS)}")
    module = import_module(f"vitlab.studies.papers.{GRIDS[name].module}")
    found = getattr(module, name.upper().replace("-", "_"))
    assert isinstance(found, Study)
    return found
