"""The studies by name; importing one imports PyTorch, so this list stands alone."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A study.

    Attributes:
        module: of `vitlab.studies`; that of a grid has `STUDY`, any other one `study`, `HEAD` and
            `table`
        about: what it is
        varies: the options of a recipe that it chooses itself
        grid: whether it is a grid of recipes, run within a budget
    """

    module: str
    about: str
    varies: str = ""
    grid: bool = True


STUDIES = {
    "positions": Entry(
        "vit.position_study", "position embeddings (ViT, Table 8)", "positions positions_at"
    ),
    "stems": Entry(
        "three_things.stems_study",
        "linear, convolutional and hMLP stems (Three things, Table 7)",
        "stem stem_norm stem_act",
    ),
    "optimizers": Entry(
        "optimizer_table",
        "the same model trained with each of them",
        "optimizer weight_decay betas momentum eps rho precondition_every",
        grid=False,
    ),
    "lr": Entry(
        "lr_range",
        "a learning rate for the recipe, from a short run with a rising one",
        "lr schedule warmup warmup_steps final_lr timescale cooldown ema ema_warmup epochs steps "
        "budget patience test_every",
        grid=False,
    ),
    "figure-7": Entry(
        "figure_seven",
        "filters, positions and attention distance of a model trained here",
        grid=False,
    ),
}
GRIDS = tuple(name for name, entry in STUDIES.items() if entry.grid)
ABOUT = "; ".join(f"{name}: {entry.about}" for name, entry in STUDIES.items())
