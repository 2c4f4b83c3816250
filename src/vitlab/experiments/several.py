"""The options of commands that ask for several runs: sweeps, folds, seeds, the tasks of VTAB."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitlab.errors import OptionError, RunError
from vitlab.experiments.campaign_folder import MOST, CampaignFolder
from vitlab.files import SWEEP_FOLDER
from vitlab.options import Only, Options, above, at_least, at_most, below, option
from vitlab.places import On
from vitlab.precision import TrainingPrecision
from vitlab.recipes.recipe import Host, Recipe

KINDS = ("sweep", "series of seeds", "cross-validation")  # that an option of a run asks for
STEPS, WARMUP = 2500, 200  # of a task of VTAB (ViT paper, Table 4)

ON = (
    "ray: of several runs, as many at the same time as a Ray cluster has room for, that of "
    "RAY_ADDRESS or one on this machine, each with a GPU or up to 4 cores"
)
_SWEEPING = Only("with sweep", lambda options: options.sweep is not None)
_SEVERAL = Only("with sweep, folds or seeds", lambda options: not options.single)


@dataclass(frozen=True, kw_only=True)
class Jobs(Options):
    """How the runs of an experiment are shared out; figures are the same, but for last bits."""

    jobs: int = option(
        1, "parallel runs, one process each, which share the cores", at_least(1), only=_SEVERAL
    )
    cells: str = option(
        "",
        "every n-th of several runs, for one of n independent processes, such as a job array: 0/8, "
        "1/8, … 7/8; once all have ended, repeat the command without it",
        only=_SEVERAL,
    )
    on: On = option("", ON, only=_SEVERAL)
    dry_run: bool = option(
        False, "estimate the cost of several runs by timing a few steps", only=_SEVERAL
    )

    @property
    def single(self) -> bool:
        """Whether there is one run."""
        return False


@dataclass(frozen=True, kw_only=True)
class SeveralRuns(Jobs):
    """Several runs in place of one: a sweep of learning rates, a cross-validation, more seeds."""

    sweep: tuple[float, ...] | None = option(
        None,
        "learning rates to try on a held-out part of the training images, the best of them being "
        "used on all of these (no numbers: the ViT paper's for the data with sgd, those around "
        "the recipe's own with adamw)",
        above(0),
    )
    sweep_layer_decay: tuple[float, ...] = option(
        (), "layer decays to try with each learning rate", above(0), at_most(1), only=_SWEEPING
    )
    sweep_more: tuple[str, ...] = option(
        (),
        "further options to try with each learning rate, each NAME=V,V, such as "
        "weight_decay=0.03,0.1 label_smoothing=0,0.1",
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
        "the deviation of their figures; with sweep, all with the rate that it chooses (0: off)",
        at_least(0),
        at_most(MOST),
    )

    def __post_init__(self) -> None:
        """Check every option, and that they go together."""
        super().__post_init__()
        self.more()
        for name in ("folds", "seeds"):
            if getattr(self, name) == 1:
                raise OptionError(f"{name} must be 0 or at least 2, not 1")
        others = {"seeds": self.seeds, "sweep": self.sweep is not None}
        for name, given in others.items():
            if self.folds and given:
                raise OptionError(f"folds and {name} exclude each other: set one of them")

    @property
    def single(self) -> bool:
        """Whether there is one run."""
        return not self.folds and not self.seeds and self.sweep is None

    def more(self) -> dict[str, list[float]]:
        """Return the further options that are tried with each learning rate.

        Raises:
            OptionError: it is not written so.
        """
        found = {}
        for each in self.sweep_more:
            name, _, values = each.partition("=")
            try:
                found[name.replace("-", "_")] = [
                    int(number) if number.is_integer() else number
                    for number in map(float, values.split(","))
                ]
            except ValueError:
                raise OptionError(
                    f"sweep_more={each} is not NAME=V,V, such as weight_decay=0.03,0.1"
                ) from None
        return found

    @property
    def words(self) -> tuple[str, ...]:
        """What the name of its folder says beside data and model."""
        named = self.values("seeds folds").items()
        return tuple(f"{count}-{name}" for name, count in named if count)


@dataclass(frozen=True, kw_only=True)
class VtabSetting(Options):
    """How each task is learned; the defaults are the ViT paper's."""

    steps: int = option(STEPS, "steps per task, of which 8% are warm-up", at_least(1))
    lr: float = option(0.01, "peak learning rate", above(0))
    sweep: tuple[float, ...] | None = option(
        None,
        "learning rates to choose from for each task, on its 200 validation images after learning "
        "from 800, in place of lr (no numbers: 0.001 0.003 0.01 0.03)",
        above(0),
    )
    batch: int = option(512, "images per step", at_least(1))
    micro_batch: int | Literal["auto"] = option(
        "auto", "images per forward pass (0: the whole batch; auto: as many as fit)", at_least(0)
    )
    image_size: int = option(384, "rows and columns that images are resized to", at_least(1))
    augment: Literal["bit", "none"] = option(
        "bit",
        "bit: random crops of 73% of the area or more, and flips, but neither where it would "
        "change a task's label (BiT paper, appendix F); none: images are only resized",
    )
    tune: Literal["all", "attention", "ffn", "head", "norms", "lora"] = option(
        "all", "what to train of the weights, always with the classifier"
    )
    precision: TrainingPrecision = option("auto", "as of `vitlab train`")
    seed: int = option(0, "seed of everything random", at_least(0))


def recorded(out: str | Path | None) -> tuple[Recipe, SeveralRuns] | None:
    """Return the recipe and the options of the campaign in a run's folder, if there is one.

    Raises:
        RunError: its file is damaged, or it is of another command.
    """
    for folder in map(CampaignFolder, (Path(out, SWEEP_FOLDER), out) if out else ()):
        if folder.started:
            recipe, record = folder.recipe, folder.record
            if (kind := record.get("campaign")) not in KINDS:
                raise RunError(
                    f"{folder.path} contains a {kind}: continue it with its own command, or "
                    "choose another --out"
                )
            return recipe, SeveralRuns.from_dict(record["settings"])
    return None


def run_several(
    recipe: Recipe,
    out: str | None,
    several: SeveralRuns,
    *,
    resume: bool,
    change: bool,
    host: Host,
    command: str,
    began: float,
) -> dict[str, Any]:
    """Run what the options ask for; return its figures, empty in all processes but the first.

    The clock of a budget was started at `began`, if there is one run; each of several has its own.

    Raises:
        OptionError: options are to change between several runs.
    """
    # the command line reads the options without PyTorch
    from vitlab.experiments.repeats import cross_validate, fold_cells, repeat, seed_cells
    from vitlab.experiments.sweep import choices_of, searching, sweep
    from vitlab.run_reports.train import train

    how: dict[str, Any] = {"resume": resume, "host": host, "command": command}
    if several.single:
        run = train(recipe, out, change=change, began=began, **how)
        return run.metrics if run.rank == 0 else {}
    if change:
        raise OptionError("change applies only to a single run: choose another --out for several")
    grid, decays, share = several.sweep or None, several.sweep_layer_decay, several.sweep_share
    if several.dry_run:
        from vitlab.experiments.cells import Cell, Setup
        from vitlab.experiments.timing import dry_run

        choices = choices_of(decays, several.more())
        if several.folds:
            cells = fold_cells(recipe, several.folds)
        elif several.seeds:
            _, tried, own = seed_cells(recipe, several.seeds, several.sweep, choices, share)
            cells = [*tried, *own]
        else:
            cells = [*searching(recipe, grid, choices, share)[1], Cell("all images", recipe, {})]
        return dry_run(cells, Setup(host, jobs=several.jobs, on=several.on))
    how |= several.values("jobs cells on")
    if several.folds:
        return cross_validate(recipe, out, several.folds, **how)
    how |= {"layer_decays": decays, "more": several.more(), "share": share}
    if several.seeds:
        return repeat(recipe, out, several.seeds, sweep=several.sweep, **how)
    run = sweep(recipe, out, grid, **how)
    return run.metrics if run.rank == 0 else {}
