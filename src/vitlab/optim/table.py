"""The optimizers: one entry each. Adding one is a function and a line of `OPTIMIZERS`.

Nothing here imports PyTorch before an optimizer is made, so the command line can read the table.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from vitlab.packages import needed

if TYPE_CHECKING:
    from torch.optim import Optimizer

LIBRARY = "pytorch_optimizer"

Groups = list[dict[str, Any]]  # parameter groups, as PyTorch's optimizers take them
Betas = tuple[float, float]


@dataclass(frozen=True)
class OptimizerEntry:
    """An optimizer.

    Attributes:
        make: from parameter groups, the learning rate, and by their names the options of a recipe
            that it needs
        takes: the parameters it updates: all, only kernels, or only matrices inside blocks
        rest: the optimizer of all other parameters
        slices: whether it can update slices of parameters (`--shard`)
        own_schedule: whether it is its own schedule and its own average of the weights
        package: where it is from, if not from PyTorch or here
    """

    make: Callable[..., "Optimizer"]
    takes: Literal["all", "kernels", "matrices inside blocks"] = "all"
    rest: str = ""
    slices: bool = False
    own_schedule: bool = False
    package: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that `make` needs, beyond the learning rate."""
        return tuple(inspect.signature(self.make).parameters)[2:]


def _sgd(groups: Groups, lr: float, momentum: float) -> "Optimizer":
    from torch.optim import SGD

    return SGD(groups, lr, momentum=momentum)


def _adam(groups: Groups, lr: float, betas: Betas, eps: float) -> "Optimizer":
    from torch.optim import Adam

    return Adam(groups, lr, betas, eps, fused=True)


def _adamw(groups: Groups, lr: float, betas: Betas, eps: float) -> "Optimizer":
    from torch.optim import AdamW

    return AdamW(groups, lr, betas, eps, fused=True)


def _adafactor(groups: Groups, lr: float) -> "Optimizer":
    from torch.optim import Adafactor

    return Adafactor(groups, lr)


def _lamb(groups: Groups, lr: float, betas: Betas, eps: float) -> "Optimizer":
    from vitlab.optim.lamb import Lamb

    return Lamb(groups, lr, betas, eps)


def _lars(groups: Groups, lr: float, momentum: float) -> "Optimizer":
    lars = needed(LIBRARY, "optimizer=lars").LARS
    return cast("Optimizer", lars(groups, lr, momentum=momentum))


def _shampoo(
    groups: Groups, lr: float, betas: Betas, eps: float, precondition_every: int
) -> "Optimizer":
    from vitlab.optim.shampoo import Shampoo

    return Shampoo(groups, lr, betas, eps, precondition_every)


def _soap(
    groups: Groups, lr: float, betas: Betas, eps: float, precondition_every: int
) -> "Optimizer":
    soap = needed(LIBRARY, "optimizer=soap").SOAP
    made = soap(groups, lr, betas, eps=eps, precondition_frequency=precondition_every)
    return cast("Optimizer", made)


def _muon(groups: Groups, lr: float, momentum: float) -> "Optimizer":
    from torch.optim import Muon

    # scaled so that AdamW's learning rate and weight decay suit it too (Liu et al., 2025)
    return Muon(groups, lr, momentum=momentum, adjust_lr_fn="match_rms_adamw")


def _schedule_free(groups: Groups, lr: float, betas: Betas, eps: float) -> "Optimizer":
    adamw = needed(LIBRARY, "optimizer=schedule-free").ScheduleFreeAdamW
    return cast("Optimizer", adamw(groups, lr, betas, eps=eps))


# LARS' trust ratio, Shampoo and SOAP are for kernels; Muon is for hidden layers (Jordan, 2024)
OPTIMIZERS = {
    "sgd": OptimizerEntry(_sgd, slices=True),
    "adam": OptimizerEntry(_adam, slices=True),
    "adamw": OptimizerEntry(_adamw, slices=True),
    "adafactor": OptimizerEntry(_adafactor),
    "lamb": OptimizerEntry(_lamb),
    "lars": OptimizerEntry(_lars, takes="kernels", rest="sgd", package=LIBRARY),
    "shampoo": OptimizerEntry(_shampoo, takes="kernels", rest="adamw"),
    "soap": OptimizerEntry(_soap, takes="kernels", rest="adamw", package=LIBRARY),
    "muon": OptimizerEntry(_muon, takes="matrices inside blocks", rest="adamw"),
    "schedule-free": OptimizerEntry(_schedule_free, own_schedule=True, package=LIBRARY),
}


def users(option: str) -> tuple[str, ...]:
    """Return the optimizers that have an option, by themselves or for the parameters they leave."""
    return tuple(
        name
        for name, entry in OPTIMIZERS.items()
        if option in entry.options or (entry.rest and option in OPTIMIZERS[entry.rest].options)
    )


def about() -> str:
    """Return for `--help` which optimizers leave some of the parameters to another."""
    return "; ".join(
        f"{name} updates only {entry.takes}, {entry.rest} the rest"
        for name, entry in OPTIMIZERS.items()
        if entry.rest
    )
