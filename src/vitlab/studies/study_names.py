"""The studies by name, and their budgets, apart from the studies, which import PyTorch."""

from dataclasses import dataclass

from vitlab.errors import OptionError
from vitlab.units import seconds

PAPER_BUDGET, USUAL_BUDGET = "paper", "10m"


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
    "data-size": Entry(
        "vit.data_size_study",
        "growing subsets of the training images (ViT, Figures 3 and 4)",
        "model train_images patience",
    ),
    "compute": Entry(
        "vit.compute_study", "accuracy against compute, with power laws (ViT, Figure 5)", "model"
    ),
    "sgd-adam": Entry(
        "vit.sgd_adam_study",
        "ResNets pre-trained with Adam and SGD (ViT, Table 7)",
        "model optimizer weight_decay momentum betas steps",
    ),
    "self-supervision": Entry(
        "vit.self_supervision_study",
        "learning without labels, then from few (ViT, 4.6 and B.1.2; MAE, BEiT, DINO)",
        "task weights train_images layer_decay",
    ),
    "stems": Entry(
        "three_things.stems_study",
        "linear, convolutional and hMLP stems (Three things, Table 7)",
        "stem stem_norm stem_act",
    ),
    "shape": Entry("vit.shape_study", "depth, width, MLP, patch size or all (ViT, Figure 8)"),
    "head": Entry("vit.head_study", "class token or mean (ViT, Figure 9)", "pool class_token"),
    "axial": Entry("vit.axial_study", "axial attention (ViT, Figure 13)"),
    "parallel": Entry(
        "three_things.parallel_study",
        "parallel branches, LayerScale, width (Three things, Tables 2 and 3)",
        "layer_scale branches",
    ),
    "tune": Entry(
        "three_things.tune_study",
        "fine-tuning everything, attention or FFNs (Three things, Tables 5 and 6)",
        "tune optimizer",
    ),
    "bias": Entry(
        "advice.bias_study",
        "what a ViT, a hybrid and a ResNet rely on, with all images, 10% and 1%",
        "train_images",
    ),
    "speed": Entry(
        "speed.figure_twelve", "images/s and the largest batch (ViT, Figure 12)", grid=False
    ),
    "optimizers": Entry(
        "advice.optimizer_study",
        "the same ViT with each of them, SAM and Shampoo on a hybrid and a ResNet, and how curved "
        "the loss is",
        "optimizer weight_decay betas momentum eps rho precondition_every",
    ),
}
GRIDS = tuple(name for name, entry in STUDIES.items() if entry.grid)
ABOUT = "; ".join(f"{name}: {entry.about}" for name, entry in STUDIES.items())


def budget_seconds(budget: str, epochs: float) -> float:
    """Return the seconds of a budget, empty for the usual one; 0 for `paper` or a given length.

    Raises:
        OptionError: it is neither a time nor `paper`, or a length is given beside it.
    """
    if budget and epochs:
        raise OptionError("budget and epochs exclude each other: set one of them")
    return 0.0 if budget == PAPER_BUDGET or epochs else seconds(budget or USUAL_BUDGET)
