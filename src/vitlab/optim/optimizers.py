"""A recipe's optimizer, over the right groups of parameters."""

import copy
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from vitlab.errors import OptionError
from vitlab.models.model import Model
from vitlab.optim.table import OPTIMIZERS, OptimizerEntry
from vitlab.recipes.optimization import Optimization

Weights = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


BESIDE = "task."  # prefix of the names of parameters that learn beside the model


def build(model: nn.Module, options: Optimization, beside: nn.Module | None = None) -> Optimizer:
    """Return a recipe's optimizer over a model's trainable parameters.

    Only kernels are decayed (`decayed`). Parameters that the optimizer does not take go to another
    one (see `OPTIMIZERS`). Every group has an `lr_scale`, the factor of its learning rate.

    Args:
        model: what is trained
        options: of the recipe
        beside: what an objective trains beside it, at the learning rate of a head

    Raises:
        OptionError: the model has nothing that this optimizer takes, or conflicts with it.
    """
    name, entry = options.optimizer, OPTIMIZERS[options.optimizer]
    named, kernels = dict(model.named_parameters()), decayed(model)
    if beside is not None:
        named |= {f"{BESIDE}{name}": weight for name, weight in beside.named_parameters()}
        kernels |= {f"{BESIDE}{name}" for name in decayed(beside)}
    free: Weights = {key: weight for key, weight in named.items() if weight.requires_grad}
    own = {key: w for key, w in free.items() if _takes(entry, key, w, key in kernels)}
    if not own:
        raise OptionError(f"{name} finds nothing to update in this model: set optimizer=adamw")
    batch_norm = any(isinstance(each, _BatchNorm) for each in model.modules())
    if entry.own_schedule and batch_norm:
        raise OptionError(
            f"{name} evaluates averaged weights, for which batch norm has no statistics: set "
            "optimizer=adamw"
        )

    def made(entry: OptimizerEntry, weights: Weights) -> Optimizer:
        """Return an optimizer of some of the parameters, with the options that it needs."""
        needed = {name: getattr(options, name) for name in entry.options}
        return entry.make(groups(model, weights, options, kernels), options.lr, **needed)

    rest = {key: weight for key, weight in free.items() if key not in own}
    first = made(entry, own)
    return OptimizerPair(first, made(OPTIMIZERS[entry.rest], rest)) if rest else first


def _takes(entry: OptimizerEntry, name: str, weight: Tensor, kernel: bool) -> bool:
    """Return whether an optimizer updates this parameter."""
    match entry.takes:
        case "matrices inside blocks":
            return weight.ndim == 2 and name.startswith("blocks.") and kernel
        case "kernels":
            return kernel
        case "all":
            return True


def groups(
    model: nn.Module, weights: Weights, how: Optimization, kernels: set[str]
) -> list[dict[str, Any]]:
    """Group parameters by learning rate and by whether they are decayed, the decayed ones first.

    The classifier, and what learns beside the model, has groups of its own where it has its own
    learning rate, whatever that is.

    Args:
        model: what is trained
        weights: its parameters, and those beside it
        how: learning rates and weight decay
        kernels: names of those that are decayed

    Raises:
        OptionError: layer-wise learning rates for a model without blocks.
    """
    head: tuple[str, ...] = ()
    if how.head_lr:
        head = (BESIDE, *(model.head_names[:1] if isinstance(model, Model) else ()))
    found: dict[tuple[float, bool, bool], list[Tensor]] = {}
    for name, weight in weights.items():
        scale = 1.0
        if how.layer_decay < 1 and not name.startswith(BESIDE):
            if not isinstance(model, Model) or not model.layers:
                raise OptionError("layer_decay needs a model of layers: set layer_decay=1")
            scale = how.layer_decay ** (model.layers - model.layer_of(name))
        found.setdefault((scale, name in kernels, name.startswith(head)), []).append(weight)
    return [
        {
            "params": found[scale, kernel, own],
            "lr_scale": (how.head_lr or how.lr) / how.lr if own else scale,
            "weight_decay": how.weight_decay * kernel,
            "head": own,
        }
        for scale, kernel, own in sorted(found, reverse=True)  # whatever the rates are
    ]


def decayed(model: nn.Module) -> set[str]:
    """Return the names of the parameters that weight decay is for.

    Kernels only: not norms and biases (one dimension), nor what a module's class lists as
    `undecayed` because it is added to tokens or stands among them, as in the official code's mask.
    """
    return {
        f"{place}.{name}".removeprefix(".")
        for place, module in model.named_modules()
        for name, weight in module.named_parameters(recurse=False)
        if weight.ndim > 1 and name not in getattr(module, "undecayed", ())
    }


class OptimizerPair(Optimizer):
    """Two optimizers, each with its own parameters, that step and are saved as one."""

    def __init__(self, first: Optimizer, second: Optimizer) -> None:
        self.parts = (first, second)
        super().__init__([*first.param_groups, *second.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Give the parts the common state, and each its own groups."""
        count = len(self.parts[0].param_groups)
        self.parts[0].param_groups = self.param_groups[:count]
        self.parts[1].param_groups = self.param_groups[count:]
        for part in self.parts:
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state of both parts."""
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step of both."""
        for part in self.parts:
            part.step()


def set_rate(optimizer: Optimizer, lr: float, head_only: bool = False) -> None:
    """Set the learning rate of the next step, times each group's own factor.

    Args:
        optimizer: with the groups of `groups`
        lr: the rate of a factor of 1
        head_only: whether all but the head, which has its own rate, stays as it is
    """
    for group in optimizer.param_groups:
        group["lr"] = 0.0 if head_only and not group.get("head") else lr * group["lr_scale"]


def evaluation_weights(model: Module, optimizer: Optimizer) -> Module:
    """Return the model to evaluate and to keep: itself, but with schedule-free AdamW a copy.

    Schedule-free training (Defazio et al., 2024) takes its gradients at y, between the fast
    weights z and their average x, which is what counts: x = y + (1 - 1 / beta1) (z - y). The
    model stays at y, so that evaluating changes nothing, not a bit.
    """
    if "train_mode" not in optimizer.param_groups[0]:
        return model
    average = copy.deepcopy(model).requires_grad_(False).eval()
    averaged = dict(zip(model.parameters(), average.parameters(), strict=True))
    for group in optimizer.param_groups:
        for weight in group["params"]:
            fast = optimizer.state.get(weight, {}).get("z")
            if fast is not None and weight in averaged:
                averaged[weight].lerp_(fast, 1 - 1 / group["betas"][0])
    return average
