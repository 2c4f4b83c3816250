"""The options of `vitlab vtab` that say how each task is learned."""

from dataclasses import dataclass
from typing import Literal

from vitlab.options import Options, above, at_least, option
from vitlab.precision import TrainingPrecision

STEPS, WARMUP = 2500, 200
GRID = (0.001, 0.003, 0.01, 0.03)  # ViT paper, Table 4, for small data sets


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
