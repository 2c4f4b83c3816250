"""From gradients to steps: the optimizer a recipe names, over the right groups of parameters."""

import copy
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitlab.errors import OptionError, UserError
from vitlab.models.model import Model
from vitlab.recipes.parts import Optimization

Weights = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


def build(model: nn.Module, how: Optimization) -> Optimizer:
    """The optimizer that a recipe names, over a model's trainable parameters.

    Kernels are decayed and nothing else is (`decayed`). LARS' and LAMB's trust ratio, Shampoo and
    SOAP are for kernels too, Muon for the matrices within blocks; what is left over goes to AdamW,
    with LARS to SGD. Every group has a `lr_scale`: the factor of its learning rate.

    Raises:
        ValueError: the model has nothing that this optimizer is for, or cannot work with it.
    """
    free: Weights = {
        name: weight for name, weight in model.named_parameters() if weight.requires_grad
    }
    kernels = decayed(model)
    special = {n: weight for n, weight in free.items() if _is_for(how, n, weight, n in kernels)}
    if not special:
        raise UserError(f"{how.optimizer} finds nothing to train in this model: use adamw")
    if how.optimizer == "schedule-free" and _has_batch_norm(model):
        raise UserError("schedule-free evaluates weights that batch norm has not seen: use adamw")
    chief = _chief(groups(model, special, how), how)
    rest = {name: weight for name, weight in free.items() if name not in special}
    return Pair(chief, _second(groups(model, rest, how), how)) if rest else chief


def _chief(params: list[dict[str, Any]], how: Optimization) -> Optimizer:
    """The optimizer itself. pytorch_optimizer takes seconds to import: only where it is needed."""
    lr, betas, eps, every = how.lr, how.betas, how.eps, how.precondition_every
    match how.optimizer:
        case "sgd":
            return torch.optim.SGD(params, lr, momentum=how.momentum)
        case "adam":
            return torch.optim.Adam(params, lr, betas, eps, fused=True)
        case "adamw":
            return torch.optim.AdamW(params, lr, betas, eps, fused=True)
        case "adafactor":
            return torch.optim.Adafactor(params, lr)
        case "muon":  # scaled so that AdamW's learning rate and decay fit it too (Liu et al., 2025)
            momentum, scaling = how.momentum, "match_rms_adamw"
            return torch.optim.Muon(params, lr, momentum=momentum, adjust_lr_fn=scaling)
        case "lamb":
            from vitlab.optim.lamb import Lamb

            return Lamb(params, lr, betas, eps)
        case "shampoo":
            from vitlab.optim.shampoo import Shampoo

            return Shampoo(params, lr, betas, eps, every)
    import pytorch_optimizer as more

    match how.optimizer:
        case "lars":
            return cast(Optimizer, more.LARS(params, lr, momentum=how.momentum))
        case "soap":
            soap = more.SOAP(params, lr, betas, eps=eps, precondition_frequency=every)
            return cast(Optimizer, soap)
        case "schedule-free":
            return cast(Optimizer, more.ScheduleFreeAdamW(params, lr, betas, eps=eps))


def _second(params: list[dict[str, Any]], how: Optimization) -> Optimizer:
    """For parameters that the chief optimizer is not for."""
    if how.optimizer == "lars":
        return torch.optim.SGD(params, how.lr, momentum=how.momentum)
    return torch.optim.AdamW(params, how.lr, how.betas, how.eps, fused=True)


def _is_for(how: Optimization, name: str, weight: Tensor, kernel: bool) -> bool:
    """Whether the chief optimizer takes this parameter."""
    match how.optimizer:
        case "muon":  # of the hidden layers alone (Jordan, 2024)
            return weight.ndim == 2 and name.startswith("blocks.") and kernel
        case "lars" | "shampoo" | "soap":
            return kernel
    return True


def groups(model: nn.Module, weights: Weights, how: Optimization) -> list[dict[str, Any]]:
    """Group parameters by learning rate and by whether they are decayed, the decayed ones first.

    Raises:
        OptionError: layer-wise learning rates for a model without blocks.
    """
    kernels, scale = decayed(model), 1.0
    found: dict[tuple[float, bool], list[Tensor]] = {}
    for name, weight in weights.items():
        if how.layer_decay < 1:
            if not isinstance(model, Model) or not model.layers:
                raise OptionError("layer_decay needs a model of blocks: set layer_decay=1")
            scale = how.layer_decay ** (model.layers - model.layer_of(name))
        found.setdefault((scale, name in kernels), []).append(weight)
    return [
        {"params": found[key], "lr_scale": key[0], "weight_decay": how.weight_decay * key[1]}
        for key in sorted(found, reverse=True)
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


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in model.modules())


class Pair(Optimizer):
    """Two optimizers, each with its own parameters, that step and are saved as one."""

    def __init__(self, first: Optimizer, second: Optimizer) -> None:
        self.parts = (first, second)
        super().__init__([*first.param_groups, *second.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the parts see the common state and their share of the groups."""
        count = len(self.parts[0].param_groups)
        self.parts[0].param_groups = self.param_groups[:count]
        self.parts[1].param_groups = self.param_groups[count:]
        for part in self.parts:
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state, both parts together."""
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Both step."""
        for part in self.parts:
            part.step()


def set_rate(optimizer: Optimizer, lr: float) -> None:
    """The learning rate of the next step, for every group times its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def settled(model: Module, optimizer: Optimizer) -> Module:
    """The weights to evaluate and to keep: the model's own, but with schedule-free AdamW a copy.

    Schedule-free training (Defazio et al., 2024) takes its gradients at y, between the fast
    weights z and their average x, which is what counts: x = y + (1 - 1 / beta1) (z - y). The
    model stays at y, so that to look changes nothing, not a bit.
    """
    if "train_mode" not in optimizer.param_groups[0]:
        return model
    average = copy.deepcopy(model).requires_grad_(False).eval()
    mine = dict(zip(model.parameters(), average.parameters(), strict=True))
    for group in optimizer.param_groups:
        for weight in group["params"]:
            fast = optimizer.state.get(weight, {}).get("z")
            if fast is not None:
                mine[weight].lerp_(fast, 1 - 1 / group["betas"][0])
    return average
