"""A recipe: everything that decides what a run learns, as one frozen value.

Its fields are the options of `vitlab train` (through tyro), the tables of `run.toml`, and the
keywords of `vitlab.recipe`: one definition, three faces. No PyTorch here.
"""

import difflib
from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass, replace
from typing import Any, Literal, get_type_hints

from vitlab.data.options import Augment, Data, Share
from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.names import config_of, shape_of


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
    """What is minimised: softmax cross-entropy.

    Attributes:
        label_smoothing: share of the target spread over all classes
    """

    label_smoothing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """AdamW; norms, biases, positions and the class token are not decayed.

    Attributes:
        lr: peak learning rate
        weight_decay: decoupled, multiplied by the learning rate
        betas: decay of the two moments
        clip: largest norm of the whole gradient (0: no clipping)
    """

    lr: float = 1e-3
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the learning rate goes: up linearly, then down.

    Attributes:
        schedule: shape of the way down
        warmup: epochs of the way up
        final_lr: learning rate at the very end, as a share of the peak
    """

    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = 0.0
    final_lr: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Average:
    """Which weights are kept: the last ones, or an average over the run.

    Attributes:
        ema: decay of an exponential moving average of the weights (0: no average)
    """

    ema: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides what a run learns; with the same seed, the same bits on a CPU.

    Attributes:
        recipe: the name it goes by; `vitlab recipes` lists them
        epochs: passes over the training images, fractions allowed
        batch: images a step
        micro_batch: images at once; a batch is accumulated from these (0: the whole batch)
        precision: fp32, or bf16 autocast
        seed: what everything random comes from
        test_every: epochs between two looks at the test images
    """

    recipe: str = "small"
    epochs: float = 100.0
    batch: int = 128
    micro_batch: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    test_every: float = 1.0
    data: Data = Data()
    model: Any = field(default_factory=ModelPart)
    augment: Augment = Augment()
    objective: Objective = Objective()
    optimiser: Optimiser = Optimiser()
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
        shard: leave each of torchrun's processes a slice of the weights, gradients and moments
            (FSDP), for models that do not fit whole
        timeout: seconds a process waits for the others before it gives up
    """

    device: str = "auto"
    workers: int | None = None
    checkpoint_every: float = 60.0
    max_bad: Share = 0.01
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
    for key, value in choices.items():
        if key not in owner:
            near = difflib.get_close_matches(key, owner, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(owner))}"
            raise UserError(f"unknown recipe field {key!r}: {hint}")
        part = owner[key]
        target = replace(parts[part], **{key: value}) if part else value
        parts[part or key] = target
    return check(Recipe(**parts))


def check(recipe: Recipe) -> Recipe:
    """The recipe itself, once every number in it makes sense.

    Raises:
        ValueError: the first field that cannot be, with what would work.
    """
    rules = [
        ("epochs", recipe.epochs, recipe.epochs > 0, "above 0"),
        ("batch", recipe.batch, recipe.batch >= 1, "at least 1"),
        ("micro_batch", recipe.micro_batch, recipe.micro_batch >= 0, "0 or more"),
        ("test_every", recipe.test_every, recipe.test_every > 0, "above 0"),
        ("lr", recipe.optimiser.lr, recipe.optimiser.lr > 0, "above 0"),
        ("clip", recipe.optimiser.clip, recipe.optimiser.clip >= 0, "0 or more"),
        ("warmup", recipe.schedule.warmup, recipe.schedule.warmup >= 0, "0 or more"),
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
    for key, value, good, want in rules:
        if not good:
            raise UserError(f"{key} must be {want}, not {value!r}")
    patch = recipe.model.patch or shape_of(recipe.model.model).get("patch", 32)
    config_for(recipe.model, image_size=8 * patch)  # one that fits: the data's is not known yet
    return recipe


def config_for(part: Any, **found: Any) -> ModelConfig:
    """The model's configuration; what the recipe gives comes before what the data needs."""
    given = {k: v for k, v in asdict(part).items() if k != "model" and v is not None}
    return config_of(part.model, **(found | given))
