"""A recipe: everything that decides what a run learns, as one frozen value.

Its fields are the options of `vitlab train` (through tyro), the tables of `run.toml`, and the
keywords of `vitlab.recipe`: one definition, three faces. No PyTorch here.
"""

import difflib
from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_type_hints

import tyro.constructors

from vitlab.data.settings import Augment, Data
from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.names import config_of, shape_of
from vitlab.options import Options
from vitlab.training.budget import seconds


def percent(text: str) -> float:
    """A share given as `1%` or as `0.01`."""
    number = text.strip().removesuffix("%")
    return float(number) / (100 if number != text.strip() else 1)


Share = Annotated[
    float,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SHARE",
        instance_from_str=lambda words: percent(words[0]),
        is_instance=lambda value: isinstance(value, float | int),
        str_from_instance=lambda value: [f"{100 * value:g}%"],
    ),
]


def _model_part() -> type[Any]:
    """A dataclass of a model's name and every field of `ViTConfig`, each None unless chosen."""
    hints = get_type_hints(ViTConfig)
    own = [f.name for f in fields(ViTConfig) if f.name != "labels"]  # those come from the data
    docs = (ViTConfig.__doc__ or "").split("Attributes:")[1].split("        labels:")[0]
    about = "What is trained; fields not given are as the name says, or as the data needs."
    return make_dataclass(
        "Model",
        [("model", str, field(default="ViT-Ti/16"))]
        + [(key, hints[key] | None, field(default=None)) for key in own],
        frozen=True,
        kw_only=True,
        namespace={
            "__doc__": f"{about}\n\n    Attributes:\n        model: its name in the papers{docs}",
            "__module__": __name__,
        },
    )


ModelPart = _model_part()


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is minimized.

    Attributes:
        loss: softmax cross-entropy; bce, one sigmoid a class, averaged over classes (A2); or
            sigmoid, the same summed over classes (ViT paper)
        bce_threshold: with bce or sigmoid, shares of a class above this count as 1, all others as
            0, so 0 is A2's 1 for each class that was mixed (None: as they are)
        label_smoothing: share of the target spread over all classes
    """

    loss: Literal["softmax", "bce", "sigmoid"] = "softmax"
    bce_threshold: float | None = None
    label_smoothing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """How gradients become steps; norms, biases, positions and the class token are not decayed.

    Attributes:
        optimizer: which one; muon is for the matrices within blocks, lars, shampoo and soap are for
            all kernels, and what they leave goes to adamw (to sgd with lars)
        lr: peak learning rate
        weight_decay: multiplied by the learning rate; taken from the weights themselves, but added
            to the gradient (L2) with sgd, adam and lars, to the normalized one with lamb and
            schedule-free
        betas: decay of the two moments
        momentum: of sgd, lars and muon
        eps: added to the root of the second moment
        clip: largest norm of the whole gradient (0: no clipping)
        layer_decay: each block's learning rate over the next one's (BEiT; 1: the same for all)
        rho: sharpness-aware minimization (SAM) around the optimizer, how far it looks (0: off)
        precondition_every: steps between two roots (shampoo) or rotations (soap)
    """

    optimizer: Literal[
        "sgd",
        "adam",
        "adamw",
        "adafactor",
        "lamb",
        "lars",
        "shampoo",
        "soap",
        "muon",
        "schedule-free",
    ] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    eps: float = 1e-8
    clip: float = 1.0
    layer_decay: float = 1.0
    rho: float = 0.0
    precondition_every: int = 10


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the learning rate goes: up linearly, then down.

    Attributes:
        schedule: shape of the way down; rsqrt is the reciprocal square root, steps are three
            tenfold drops (at 30, 60 and 90 percent, as BiT's)
        warmup: epochs of the way up
        warmup_steps: the same in steps, in place of epochs (0: epochs)
        final_lr: learning rate at the very end, as a share of the peak
        timescale: steps behind the warm-up after which rsqrt is down to 0.71
        cooldown: epochs at the end over which the rate goes to final_lr linearly as well
    """

    schedule: Literal["cosine", "linear", "constant", "rsqrt", "steps"] = "cosine"
    warmup: float = 0.0
    warmup_steps: int = 0
    final_lr: float = 0.0
    timescale: int = 10_000
    cooldown: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Average:
    """Which weights are kept: the last ones, or an average over the run.

    Attributes:
        ema: decay of an exponential moving average of the weights (0: no average)
        ema_warmup: the decay grows to that value, so that the random start is forgotten; without,
            it is the same from the first step, as in Polyak averaging (ViT paper, Table 2: 0.9999)
    """

    ema: float = 0.0
    ema_warmup: bool = True


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides what a run learns; with the same seed, the same bits on a CPU.

    Attributes:
        recipe: the name it goes by; `vitlab recipes` lists them
        epochs: passes over the training images, fractions allowed
        steps: the length in steps, in place of epochs (0: epochs)
        batch: images a step
        micro_batch: images at once; a batch is accumulated from these (0: the whole batch; auto:
            the most that fit into the device's memory, decided once and kept in run.toml)
        precision: fp32, bf16 autocast, or bf16-pure: weights and tokens in bf16, beside fp32
            master weights for the optimizer
        seed: what everything random comes from
        test_every: epochs between two looks at the test images
        budget: a time as 90s, 20m or 2h that the whole schedule is fitted into, in place of
            epochs; warm-up keeps its share ("": no limit)
        patience: looks at the validation images without a gain before the run ends, with the best
            weights (0: never); data without a validation split gives a tenth of its training images
    """

    recipe: str = "small"
    epochs: float = 100.0
    steps: int = 0
    batch: int = 128
    micro_batch: int | Literal["auto"] = 0
    precision: Literal["fp32", "bf16", "bf16-pure"] = "fp32"
    seed: int = 0
    test_every: float = 1.0
    budget: str = ""
    patience: int = 0
    data: Data = Data()
    model: Any = field(default_factory=ModelPart)
    augment: Augment = Augment()
    objective: Objective = Objective()
    optimizer: Optimization = Optimization()
    schedule: Schedule = Schedule()
    average: Average = Average()


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where and how a run works; nothing here changes what it learns.

    Attributes:
        device: auto, cpu, cuda or cuda:N
        workers: processes that decode images (None: chosen for the data and the machine)
        checkpoint_every: seconds between two checkpoints
        max_bad: share of damaged images that is skipped before the run stops, as 1% or 0.01
        compile: compile the training step; auto: on GPUs. Last bits change, and where dropout falls
        checkpoint_activations: keep less of the forward pass and compute it again going backward:
            a third more work for far less memory, and the same bits
        track: report the lines of metrics.jsonl to TensorBoard, Weights & Biases or trackio too
        shard: leave each of torchrun's processes a slice of the weights, gradients and moments
            (FSDP), for models that do not fit whole
        timeout: seconds a process waits for the others before it gives up
    """

    device: str = "auto"
    workers: int | None = None
    checkpoint_every: float = 60.0
    max_bad: Share = 0.01
    compile: Literal["auto", "yes", "no"] = "auto"
    checkpoint_activations: bool = False
    track: Literal["no", "tensorboard", "wandb", "trackio"] = "no"
    shard: bool = False
    timeout: float = 600.0


def change(recipe: Recipe, **choices: Any) -> Recipe:
    """The same recipe with fields replaced, each by its own name whichever part it belongs to.

    Naming a model forgets what an earlier one chose.
    """
    if "model" in choices and isinstance(choices["model"], str):
        recipe = replace(recipe, model=ModelPart())
    parts = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    owner = {
        f.name: part for part, value in parts.items() if is_dataclass(value) for f in fields(value)
    }
    owner |= dict.fromkeys((key for key, value in parts.items() if not is_dataclass(value)), "")
    for key in choices:
        if key not in owner:
            near = difflib.get_close_matches(key, owner, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(owner))}"
            raise UserError(f"unknown recipe field {key!r}: {hint}")
    for part in {owner[key] for key in choices}:
        own = {key: value for key, value in choices.items() if owner[key] == part}
        group: Any = parts.get(part)
        changed = group.changed if isinstance(group, Options) else partial(replace, group)
        parts |= {part: changed(**own)} if part else own
    return check(Recipe(**parts))


def check(recipe: Recipe) -> Recipe:
    """The recipe itself, once every number in it makes sense.

    Raises:
        ValueError: the first field that cannot be, with what would work.
    """
    rules = [
        ("epochs", recipe.epochs, recipe.epochs > 0, "above 0"),
        ("steps", recipe.steps, recipe.steps >= 0, "0 or more"),
        ("batch", recipe.batch, recipe.batch >= 1, "at least 1"),
        ("micro_batch", recipe.micro_batch, _pieces(recipe.micro_batch), "auto, 0 or more"),
        ("patience", recipe.patience, recipe.patience >= 0, "0 or more"),
        ("test_every", recipe.test_every, recipe.test_every > 0, "above 0"),
        *_optimizer_rules(recipe.optimizer),
        *_schedule_rules(recipe.schedule),
        ("ema", recipe.average.ema, 0 <= recipe.average.ema < 1, "in [0, 1)"),
        ("area", recipe.augment.area, 0 < recipe.augment.area <= 1, "in (0, 1]"),
        ("aspect", recipe.augment.aspect, recipe.augment.aspect >= 1, "at least 1"),
        ("zoom", recipe.augment.zoom, recipe.augment.zoom >= 0, "0 or more"),
        ("shear", recipe.augment.shear, abs(recipe.augment.shear) < 90, "below 90 degrees"),
        ("seed", recipe.seed, 0 <= recipe.seed < 2**63, "in [0, 2^63)"),
    ]
    fraction, smooth = recipe.data.test_fraction, recipe.objective.label_smoothing
    rules.append(("test_fraction", fraction, 0 < fraction < 1, "in (0, 1)"))
    rules.append(("label_smoothing", smooth, 0 <= smooth < 1, "in [0, 1)"))
    rules += _augment_rules(recipe) + _objective_rules(recipe.objective)
    for key, value, good, want in rules:
        if not good:
            raise UserError(f"{key} must be {want}, not {value!r}")
    _check_schedule_free(recipe)
    seconds(recipe.budget)
    patch = recipe.model.patch or shape_of(recipe.model.model).get("patch", 32)
    config_for(recipe.model, image_size=8 * patch)  # one that fits: the data's is not known yet
    return recipe


def _augment_rules(recipe: Recipe) -> list[tuple[str, Any, bool, str]]:
    """What must hold of the policies and of mixing."""
    how = recipe.augment
    mixes, policies = bool(how.mixup or how.cutmix), bool(how.rand_ops and how.three_augment)
    together = "2 or more where images are mixed in pairs"
    rules: list[tuple[str, Any, bool, str]] = [
        ("rand_ops", how.rand_ops, 0 <= how.rand_ops <= 15, "in [0, 15]"),
        ("three_augment", how.three_augment, not policies, "off where there are rand_ops"),
        ("hue_jitter", how.hue_jitter, 0 <= how.hue_jitter <= 0.5, "in [0, 0.5]"),
        ("repeats", how.repeats, how.repeats >= 1, "at least 1"),
        ("micro_batch", recipe.micro_batch, recipe.micro_batch != 1 or not mixes, together),
    ]
    for key in ("rand_magnitude", "rand_std", "rand_limit", "color_jitter", "mixup", "cutmix"):
        value = getattr(how, key)
        rules.append((key, value, 0 <= value < float("inf"), "0 or more and finite"))
    for key in ("rand_probability", "erase", "mix_switch"):
        value = getattr(how, key)
        rules.append((key, value, 0 <= value <= 1, "in [0, 1]"))
    return rules


def _objective_rules(objective: Objective) -> list[tuple[str, Any, bool, str]]:
    """What must hold of the loss."""
    threshold, softmax = objective.bce_threshold, objective.loss == "softmax"
    smooth = objective.label_smoothing
    rules: list[tuple[str, Any, bool, str]] = []
    if threshold is not None:
        rules.append(("bce_threshold", threshold, 0 <= threshold < 1, "in [0, 1)"))
        rules.append(("bce_threshold", threshold, not softmax, "None with --loss softmax"))
        rules.append(("label_smoothing", smooth, smooth == 0, "0 with a bce_threshold"))
    return rules


Rule = tuple[str, Any, bool, str]  # a field, its value, whether that can be, what would work


def _optimizer_rules(how: Optimization) -> list[Rule]:
    known = get_args(get_type_hints(Optimization)["optimizer"])
    good = len(how.betas) == 2 and all(0 <= beta < 1 for beta in how.betas)
    every = how.precondition_every
    return [
        ("optimizer", how.optimizer, how.optimizer in known, f"one of {', '.join(known)}"),
        ("lr", how.lr, how.lr > 0, "above 0"),
        ("weight_decay", how.weight_decay, how.weight_decay >= 0, "0 or more"),
        ("betas", how.betas, good, "two numbers in [0, 1)"),
        ("momentum", how.momentum, 0 <= how.momentum < 1, "in [0, 1)"),
        ("eps", how.eps, how.eps > 0, "above 0"),
        ("clip", how.clip, how.clip >= 0, "0 or more"),
        ("layer_decay", how.layer_decay, 0 < how.layer_decay <= 1, "in (0, 1]"),
        ("rho", how.rho, how.rho >= 0, "0 or more"),
        ("precondition_every", every, every >= 1, "at least 1"),
    ]


def _schedule_rules(how: Schedule) -> list[Rule]:
    known = get_args(get_type_hints(Schedule)["schedule"])
    return [
        ("schedule", how.schedule, how.schedule in known, f"one of {', '.join(known)}"),
        ("warmup", how.warmup, how.warmup >= 0, "0 or more"),
        ("warmup_steps", how.warmup_steps, how.warmup_steps >= 0, "0 or more"),
        ("timescale", how.timescale, how.timescale > 0, "above 0"),
        ("cooldown", how.cooldown, how.cooldown >= 0, "0 or more"),
    ]


def _check_schedule_free(recipe: Recipe) -> None:
    """What stands in the way of an optimizer that is its own schedule and its own average."""
    if recipe.optimizer.optimizer != "schedule-free":
        return
    if recipe.schedule.schedule != "constant" or recipe.schedule.cooldown:
        raise UserError(
            "schedule-free is its own schedule: give it schedule=constant and cooldown=0"
        )
    if recipe.average.ema:
        raise UserError("schedule-free averages the weights itself: give it ema=0")
    if not recipe.optimizer.betas[0]:
        raise UserError("schedule-free needs betas[0] above 0, as 0.9")


def _pieces(size: int | str) -> bool:
    return size >= 0 if isinstance(size, int) else size == "auto"


def config_for(part: Any, **found: Any) -> ModelConfig:
    """The model's configuration; what the recipe gives comes before what the data needs."""
    given = {k: v for k, v in asdict(part).items() if k != "model" and v is not None}
    return config_of(part.model, **(found | given))
