"""A recipe: everything that decides what a run learns, as one frozen value.

Its options are those of `vitlab train`, the tables of `run.toml`, and the keywords of
`vitlab.recipe`: one definition, three faces. `Decisions` are what it leaves open.
"""

from collections import ChainMap
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from vitlab.data.settings import Augment, Data
from vitlab.effort import FULL, Effort
from vitlab.errors import OptionError
from vitlab.machine.open_files import check_open_files
from vitlab.machine.option_texts import DEVICE, WORKERS
from vitlab.optim.table import OPTIMIZERS
from vitlab.options import Bound, Options, above, at_least, check_known, hints, option, when
from vitlab.packages import check_installed
from vitlab.precision import TrainingPrecision
from vitlab.recipes.losses import Distill, ObjectivePart
from vitlab.recipes.model_part import ModelPart, ViTPart, model_part
from vitlab.recipes.optimization import Optimization
from vitlab.recipes.pretext import Pretext
from vitlab.recipes.schedule import Average, Schedule
from vitlab.recipes.start import Start
from vitlab.units import seconds

CHOOSABLE = 500  # training images from which on a tenth can tell two models apart
PROBE = "probe"  # the recipe of a run that fits a head to features, and takes no step
OF_NUMBERS = ("l2", "huber", "gaussian")  # losses
NO_STEP = ("recipe", "data", "start", "model")  # the tables that such a run has


@dataclass(frozen=True, kw_only=True)
class Recipe(Options):
    """Everything that decides what a run learns: with the same seed, the same bits on a CPU.

    Raises:
        OptionError: an invalid value, or parts that do not go together.
    """

    recipe: str = option(
        "small",
        "the recipe that the other options start from; `vitlab recipes` lists them; on the command "
        "line also a run's folder or its run.toml",
    )
    epochs: float = option(
        100.0,
        "passes over the training images; fractions are allowed; so few that the warm-up would "
        "take them all shorten it in proportion",
        above(0),
        only=when("steps", 0),
    )
    steps: int = option(
        0,
        "length of the run in steps, in place of epochs (0: use epochs); so few that the warm-up "
        "would take them all shorten it in proportion",
        at_least(0),
    )
    batch: int = option(128, "images per step", at_least(1))
    micro_batch: int | Literal["auto"] = option(
        "auto",
        "images per forward pass; gradients are accumulated over the batch (0: the whole batch; "
        "auto: the whole batch too, or as many as fit into the device's memory, decided once and "
        "kept in run.toml)",
        at_least(0),
    )
    precision: TrainingPrecision = option(
        "auto",
        "auto: bf16 where the device computes it faster than fp32, else fp32, decided once and "
        "kept in run.toml; bf16: autocast; bf16-pure: weights and activations in bf16, with fp32 "
        "master weights in the optimizer",
    )
    seed: int = option(
        0,
        "seed of everything random",
        at_least(0),
        Bound("below 2^63", lambda number: bool(number < 2**63)),
    )
    test_every: float = option(1.0, "epochs between two tests on held-out images", above(0))
    budget: str = option(
        "",
        "a time such as 90s, 20m or 2h that the whole schedule is fitted into, in place of epochs; "
        "warm-up keeps its share (empty: no limit)",
    )
    patience: int = option(
        0,
        "tests on the validation images without a gain before the run ends, with the best weights "
        "(0: never); without a validation split, a tenth of the training images are held out",
        at_least(0),
    )
    data: Data = Data()
    start: Start = Start()
    model: ModelPart = ViTPart()
    augment: Augment = Augment()
    objective: ObjectivePart = ObjectivePart()
    pretext: Pretext = Pretext()
    distill: Distill = Distill()
    optimizer: Optimization = Optimization()
    schedule: Schedule = Schedule()
    average: Average = Average()

    def __post_init__(self) -> None:
        """Check every option, then what the parts demand of each other."""
        super().__post_init__()
        seconds(self.budget)
        if self.pretext.unlabeled and self.recipe != PROBE:
            self._check_pretext()
        elif self.objective.loss in OF_NUMBERS:
            raise OptionError(f"loss={self.objective.loss} learns numbers: name them with targets")
        own = "task" if self.pretext.unlabeled else "teacher" if self.distill.teacher else ""
        if own and self.precision == "bf16-pure":
            raise OptionError(f"{own} cannot be used with bf16-pure: set precision=bf16")
        if self.micro_batch == 1 and (self.augment.mixup or self.augment.cutmix):
            raise OptionError("micro_batch must be at least 2 with mixup or cutmix, not 1")
        if OPTIMIZERS[self.optimizer.optimizer].own_schedule:
            self._check_schedule_free()

    def _check_pretext(self) -> None:
        """Refuse options that need the labels of images; a pretext task has none."""
        task = self.pretext.task
        usual = Augment()
        loss = self.objective.loss
        numbers = task == "regress"
        if numbers and loss not in OF_NUMBERS:
            raise OptionError(
                "task=regress needs loss=l2, as a rule, huber, where some numbers are far off, or "
                "gaussian, to learn a deviation beside each"
            )
        needing = {
            "teacher": self.distill.teacher,
            "mixup": self.augment.mixup,
            "cutmix": self.augment.cutmix,
            "label_smoothing": self.objective.label_smoothing,
            "balance": self.objective.balance != "none",
            "loss": loss != "softmax" and not numbers,
            "tune": self.start.tune != "all" and task not in ("regress", "segment"),
            "head_start": self.start.head_start not in ("zero", "probe" if numbers else ""),
            "dev_share": self.data.dev_share and not self.pretext.annotated,
            "fold": self.data.fold and not self.pretext.annotated,
            "drop_duplicates": self.data.drop_duplicates and not self.pretext.annotated,
        }
        for name, given in needing.items():
            if given:
                raise OptionError(f"{name} needs labels of classes, not task={task}")
        if what := {"detect": "boxes", "segment": "masks"}.get(task):
            for name in ("rotate", "shift", "zoom", "shear", "rand_ops"):
                if getattr(self.augment, name) != getattr(usual, name):
                    raise OptionError(
                        f"{name} would not move the {what} of task={task}: leave it out"
                    )

    def _check_schedule_free(self) -> None:
        """Refuse what conflicts with an optimizer that is its own schedule and its own average."""
        if self.schedule.schedule != "constant" or self.schedule.cooldown:
            raise OptionError(
                "schedule-free replaces the schedule: set schedule=constant and cooldown=0"
            )
        if self.average.ema:
            raise OptionError("schedule-free averages the weights itself: set ema=0")
        if not self.optimizer.betas[0]:
            raise OptionError("schedule-free needs betas[0] above 0, such as 0.9")

    def changed(self, **given: Any) -> Self:
        """Return the recipe with some options replaced, each by its own name in whatever part.

        Options that were chosen before and no longer apply return to their defaults; naming another
        model drops all fields that were chosen for the previous one, and naming a number of epochs
        (or of warm-up epochs) replaces the recipe's number of steps. So few epochs or steps that
        the warm-up would take them all shorten it in proportion, unless it is named too; of a
        recipe whose length is in steps, any number of epochs does. The same options once more
        change nothing.

        Raises:
            OptionError: an unknown option, an invalid value, or an option without effect.
        """
        model = given.pop("model", self.model.model)
        same = model == self.model.model
        recipe = self if same else replace(self, model=model_part(model))
        for epochs, steps in (("epochs", "steps"), ("warmup", "warmup_steps")):
            if epochs in given and steps not in given:
                given[steps] = 0
        if not {"warmup", "warmup_steps"} & set(given):
            given |= self._shorter_warmup(given.get("epochs"), given.get("steps"))
        return super(Recipe, recipe).changed(**given)

    def _shorter_warmup(self, epochs: Any, steps: Any) -> dict[str, float]:
        """Return the warm-up within a new length, of a type that is not checked yet."""
        when = self.schedule
        counted = self.steps and self.schedule.warmup_steps
        if isinstance(epochs, int | float) and (counted or epochs <= when.warmup):
            return {**self._warmup_within(epochs), **({"warmup_steps": 0} if counted else {})}
        if counted and isinstance(steps, int) and 0 < steps <= when.warmup_steps:
            return {"warmup_steps": round(steps * when.warmup_steps / self.steps)}
        return {}

    def chooses(self, images: int) -> str:
        """Return what validation images decide on, for which some are held out; empty for nothing.

        Args:
            images: to learn from; of few, too few would be held out to tell two models apart
        """
        if self.patience:
            return "when to stop"
        if self.start.head_start == "probe" and not self.pretext.unlabeled and images >= CHOOSABLE:
            return "between the fitted classifier and the fine-tuned one"
        return ""

    def decided_as(self, before: Self) -> Self:
        """Return the recipe with what it leaves to the run as an earlier start decided.

        That is each option with `auto`, and where evaluation's box lies.
        """
        known, mine = (ChainMap(*each.as_tables().values()) for each in (before, self))
        chosen = {k: known[k] for k, v in mine.items() if v == "auto" != known.get(k)}
        return self.changed(center=self.model.center or before.model.center, **chosen)

    def lasting(self, epochs: float) -> Self:
        """Return the recipe over another number of epochs, its warm-up in proportion.

        Raises:
            OptionError: not a number above 0.
        """
        longer = self.changed(epochs=epochs)  # refuses what is no number
        return longer.changed(**self._warmup_within(longer.epochs))

    def _warmup_within(self, epochs: Any) -> dict[str, float]:
        """Return the warm-up with the same share of another number of epochs, if there is any."""
        when = self.schedule
        counted = self.steps and when.warmup_steps
        share = when.warmup_steps / self.steps if counted else when.warmup / self.epochs
        return {"warmup": share * epochs} if share else {}

    def as_tables(self) -> dict[str, dict[str, Any]]:
        """Return the recipe as the tables of `run.toml`; fields that are None are left out."""
        groups = [name for name in hints(type(self)) if isinstance(getattr(self, name), Options)]
        own = {name: value for name, value in self.as_table().items() if name not in groups}
        tables = {"recipe": own} | {name: getattr(self, name).as_table() for name in groups}
        if self.recipe != PROBE:
            return tables
        own = {name: own[name] for name in ("recipe", "seed", "precision")}
        how = {key: each for key in ("task", "targets") if (each := tables["pretext"][key])}
        task = {"pretext": how} if self.pretext.task != "classify" else {}
        return {name: tables[name] for name in NO_STEP} | task | {"recipe": own}

    @classmethod
    def from_tables(cls, tables: dict[str, Any]) -> Self:
        """Create the recipe that `as_tables` wrote; missing options get their defaults.

        Raises:
            OptionError: an unknown option, an invalid value, or a missing table.
        """
        values: dict[str, Any] = {}
        for name, kind in hints(cls).items():
            if isinstance(kind, type) and issubclass(kind, Options):
                table = _table(tables, name)
                values[name] = model_part(**table) if kind is ModelPart else kind.from_dict(table)
        recipe = cls.from_dict(tables.get("recipe", {}) | values)
        if recipe.model.model:
            recipe.model.check()
        return recipe


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part's table; the first versions had only labels, random weights and no teacher."""
    probe = tables.get("recipe", {}).get("recipe") == PROBE and name not in NO_STEP
    if (probe or name in ("start", "pretext", "distill")) and name not in tables:
        return {}
    check_known([name], tables, "table")
    return dict(tables[name])


def check_packages(recipe: Recipe) -> None:
    """Refuse a recipe whose packages are not installed, without importing them.

    Raises:
        PackageError: the first missing one; the message names the extra.
    """
    name = recipe.optimizer.optimizer
    if package := OPTIMIZERS[name].package:
        check_installed(package, f"optimizer={name}", "set optimizer=adamw")


@dataclass(frozen=True, kw_only=True)
class Host(Options):
    """Device, processes, checkpoints and logs; nothing here changes what a run learns."""

    device: str = option("auto", DEVICE)
    workers: int | None = option(
        None,
        WORKERS,
        at_least(0),
        check=check_open_files,
    )
    check_duplicates: Literal["auto", "yes", "no"] = option(
        "auto",
        "look for near-duplicates of test images among the training images (auto: if it takes "
        "under a minute)",
    )
    checkpoint_every: float = option(60.0, "seconds between two checkpoints", at_least(0))
    report: Literal["yes", "no"] = option(
        "yes", "write report.html at the end (no: save its seconds; all else is the same)"
    )
    max_bad: float = option(
        0.01,
        "damaged images that are skipped before the run stops: a share such as 1%, or a number "
        "such as 20; up to 5 are in any case, but with 0 none",
        at_least(0),
    )
    compile: Literal["auto", "yes", "no"] = option(
        "auto",
        "compile the training step (auto: on GPUs, where the run is long enough to win back the "
        "half minute that it takes); the last bits change, and which units dropout drops",
    )
    checkpoint_activations: bool = option(
        False,
        "recompute activations in the backward pass instead of keeping them: a third more work, "
        "far less memory, the same bits",
    )
    track: Literal["no", "tensorboard", "wandb", "trackio"] = option(
        "no", "send the lines of metrics.jsonl to TensorBoard, Weights & Biases or trackio too"
    )
    probe: str = option(
        "",
        "labeled images, any DATA, on which the accuracy of the features is measured at each test; "
        "it is printed and drawn in the report",
    )
    probe_by: Literal["fewshot", "knn"] = option(
        "fewshot",
        "what the probe measures: fewshot: a linear classifier learned from 10 images per class; "
        "knn: the vote of the 20 nearest of at most 5,000 training images",
        only=when("probe"),
    )
    shard: bool = option(
        False,
        "split weights, gradients and moments over torchrun's processes (FSDP), for models that "
        "do not fit into one device",
    )
    timeout: float = option(
        600.0, "seconds that a process waits for the others before it gives up", above(0)
    )
    effort: Effort = FULL

    def as_dict(self) -> dict[str, Any]:
        """Return the options as JSON has them; what is none of them is not kept."""
        values = super().as_dict()
        del values["effort"]
        return values

    @property
    def draws_report(self) -> bool:
        """Whether a run has a page."""
        return self.report == "yes" and self.effort.report


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Where and how a run works, and what the user typed."""

    host: Host = Host()
    command: str = ""

    def with_effort(self, effort: Effort) -> Self:
        """Return them for a run whose figures are worked out this thoroughly."""
        return replace(self, host=replace(self.host, effort=effort))


@dataclass(frozen=True)
class Decisions:
    """Decisions of a run, made once and kept in `run.toml`, so that a resumed run keeps to them.

    A run of the same recipe that is given these numbers learns the same bits.

    Attributes:
        micro_batch: images per forward pass (None: not decided)
        plan: (first step, total steps) pairs, the first from step 0; each holds from its step on
            (empty: not decided)
        rollbacks: (step, step) pairs: of a state that the run went back to, since the loss was not
            finite, and where it went on with its weights
        diverged: why the run gave up (empty: it has not)
    """

    micro_batch: int | None = None
    plan: tuple[tuple[int, int], ...] = ()
    rollbacks: tuple[tuple[int, int], ...] = ()
    diverged: str = ""

    def total_steps(self, step: int) -> int:
        """Return the total number of steps, as planned when `step` (from 0) is taken."""
        return next(total for first, total in reversed(self.plan) if first <= step)

    def goes_on_at(self, step: int) -> int:
        """Return where the run goes on with the weights after `step` steps: there, or later."""
        return dict(self.rollbacks).get(step, step)

    def applied_to(self, recipe: Recipe, images: int) -> Recipe:
        """Return the recipe with these numbers; warm-up and cooldown keep their share of the run.

        Args:
            recipe: as the user asked for it
            images: training images per epoch
        """
        if self.micro_batch is not None:
            recipe = replace(recipe, micro_batch=self.micro_batch)
        if not self.plan:
            return recipe
        epochs = max(1, self.plan[0][1]) * recipe.batch / images  # no step: a head alone
        schedule = recipe.schedule
        factor = epochs / (recipe.steps * recipe.batch / images or recipe.epochs)
        schedule = replace(
            schedule,
            warmup=schedule.warmup * factor,
            warmup_steps=round(schedule.warmup_steps * factor),
            cooldown=schedule.cooldown * factor,
        )
        return replace(recipe, epochs=epochs, steps=0, schedule=schedule)
