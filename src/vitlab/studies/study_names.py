"""The studies by name, and their budgets, apart from the studies, which import PyTorch."""

from dataclasses import dataclass

from vitlab.errors import OptionError
from vitlab.units import seconds

PAPER_BUDGET, USUAL_BUDGET = "paper", "10m"


@dataclass(frozen=True)
class Entry:
    """A study, a grid of recipes that is run within a budget.

    Attributes:
        module: of `vitlab.studies.papers`, which has the study by its name in capitals
        about: what it is
        varies: the options of a recipe that it chooses itself
    """

    module: str
    about: str
    varies: str = ""


GRIDS = {
    "positions": Entry(
        "architecture", "position embeddings (ViT, Table 8)", "positions positions_at"
    ),
    "data-size": Entry(
        "data_size",
        "growing subsets of the training images (ViT, Figures 3 and 4)",
        "model train_images patience",
    ),
    "compute": Entry(
        "compute", "accuracy against compute, with power laws (ViT, Figure 5, Table 6)", "model"
    ),
    "sgd-adam": Entry(
        "sgd_adam",
        "ResNets pre-trained with Adam and SGD (ViT, Table 7)",
        "model optimizer weight_decay momentum betas steps",
    ),
    "self-supervision": Entry(
        "self_supervision",
        "learning without labels, then from few (ViT, 4.6 and B.1.2; MAE, BEiT, DINO)",
        "task weights train_images layer_decay",
    ),
    "stems": Entry(
        "stems",
        "linear, convolutional and hMLP stems (Three things, Table 7)",
        "stem stem_norm stem_act",
    ),
    "shape": Entry("architecture", "depth, width, MLP, patch size or all (ViT, Figure 8)"),
    "head": Entry("architecture", "class token or mean (ViT, Figure 9)", "pool class_token"),
    "axial": Entry("architecture", "axial attention (ViT, Figure 13)"),
    "parallel": Entry(
        "three_things",
        "parallel branches, LayerScale, width (Three things, Tables 2 and 3)",
        "layer_scale branches",
    ),
    "tune": Entry(
        "three_things",
        "fine-tuning everything, attention or FFNs (Three things, Tables 5 and 6)",
        "tune optimizer",
    ),
    "bias": Entry(
        "bias",
        "what a ViT, a hybrid and a ResNet rely on, with all images, 10% and 1%",
        "train_images",
    ),
    "optimizers": Entry(
        "optimizers",
        "the same ViT with each of them, SAM and Shampoo on a hybrid and a ResNet",
        "optimizer weight_decay betas momentum eps rho precondition_every",
    ),
}
ABOUT = "; ".join(f"{name}: {entry.about}" for name, entry in GRIDS.items())


def budget_seconds(budget: str, epochs: float) -> float:
    """Return the seconds of a budget, empty for the usual one; 0 for `paper` or a given length.

    Raises:
        OptionError: it is neither a time nor `paper`, or a length is given beside it.
    """
    if budget and epochs:
        raise OptionError("budget and epochs exclude each other: set one of them")
    return 0.0 if budget == PAPER_BUDGET or epochs else seconds(budget or USUAL_BUDGET)
