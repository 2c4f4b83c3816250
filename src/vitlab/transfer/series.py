"""The options of `vitlab train` and `vitlab finetune` that ask for several runs in place of one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.errors import OptionError
from vitlab.options import Only, Options, above, at_least, at_most, below, option
from vitlab.recipes.recipe import Host, Recipe
from vitlab.transfer.campaign_folder import MOST, CampaignFolder, sweep_of

_SWEEPING = Only("with sweep", lambda options: options.sweep is not None)


@dataclass(frozen=True, kw_only=True)
class Series(Options):
    """Several runs in place of one: a sweep of learning rates, a cross-validation, more seeds."""

    sweep: tuple[float, ...] | None = option(
        None,
        "learning rates to try on a held-out part of the training images, the best of them being "
        "used on all of these (no numbers: the ViT paper's for the data with sgd, those around "
        "the recipe's own with adamw)",
        above(0),
    )
    sweep_layer_decay: tuple[float, ...] = option(
        (),
        "layer decays to try with each learning rate",
        above(0),
        at_most(1),
        only=_SWEEPING,
    )
    sweep_share: float | None = option(
        None,
        "share of each class of the training images that a sweep holds out (None: 1% of ImageNet, "
        "2% of CIFAR, 10% of others)",
        above(0),
        below(1),
        only=_SWEEPING,
    )
    folds: int = option(
        0,
        "parts of a cross-validation: one run per part, tested on it (0: off)",
        at_least(0),
        at_most(MOST),
    )
    seeds: int = option(
        0,
        "runs that differ in their seed alone, this one's and those after it, with the mean and "
        "the deviation of their figures (0: off)",
        at_least(0),
        at_most(MOST),
    )

    def __post_init__(self) -> None:
        """Check every option, and that they go together."""
        super().__post_init__()
        for name in ("folds", "seeds"):
            if getattr(self, name) == 1:
                raise OptionError(f"{name} must be 0 or at least 2, not 1")
        given = {"folds": self.folds, "seeds": self.seeds, "sweep": self.sweep is not None}
        if len(chosen := [name for name, value in given.items() if value]) > 1:
            raise OptionError(f"{' and '.join(chosen)} exclude each other: set one of them")

    @property
    def single(self) -> bool:
        """Whether there is one run."""
        return not self.folds and not self.seeds and self.sweep is None

    @property
    def words(self) -> tuple[str, ...]:
        """What the name of its folder says beside data and model."""
        if self.seeds:
            return (f"{self.seeds}-seeds",)
        return (f"{self.folds}-folds",) if self.folds else ()


def recorded(out: str | Path | None) -> tuple[Recipe, Series] | None:
    """Return the recipe and the options of the campaign in a run's folder, if there is one.

    Raises:
        RunError: its file is damaged.
    """
    for folder in (sweep_of(out), CampaignFolder(out)) if out else ():
        if folder.started:
            return folder.recipe, Series.from_dict(folder.record["settings"])
    return None


def run_series(
    recipe: Recipe,
    out: str | None,
    series: Series,
    *,
    resume: bool,
    change: bool = False,
    host: Host,
    command: str,
    began: float,
) -> dict[str, Any]:
    """Run what the options ask for; return its figures, empty in all processes but the first.

    The clock of a budget was started at `began`, if there is one run; each of several has its own.

    Raises:
        OptionError: options are to change between several runs.
    """
    from vitlab.training.run import train  # the command line reads the options without PyTorch
    from vitlab.transfer.folds import cross_validate
    from vitlab.transfer.repeats import repeat
    from vitlab.transfer.sweep import sweep

    if change and not series.single:
        raise OptionError("change applies only to a single run: choose another --out for several")
    if series.folds:
        return cross_validate(recipe, out, series.folds, resume=resume, host=host, command=command)
    if series.seeds:
        return repeat(recipe, out, series.seeds, resume=resume, host=host, command=command)
    if series.sweep is not None:
        run = sweep(
            recipe,
            out,
            series.sweep or None,
            layer_decays=series.sweep_layer_decay,
            share=series.sweep_share,
            resume=resume,
            host=host,
            command=command,
        )
    else:
        how: dict[str, Any] = {"host": host, "command": command, "began": began}
        run = train(recipe, out, resume=resume, change=change, **how)
    return run.metrics if run.rank == 0 else {}
