"""An optimizer's state as tensors and JSON, and back to the same bits."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from vitlab.optim.sliced import is_sliced, placed

# numbers of a group that never change by themselves
OF_RECIPE = ("lr_scale", "weight_decay", "momentum", "eps")


def pack(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's tensors by name, and the rest of its state as JSON values.

    The memory layout of a tensor is saved too: matrix products round differently with another.
    """
    tensors: dict[str, Tensor] = {}
    whole = optimizer.state_dict()
    state = {
        str(index): {key: _pack(value, f"{index}.{key}", tensors) for key, value in entry.items()}
        for index, entry in whole["state"].items()
    }
    return tensors, {"state": state, "groups": [_changing(each) for each in whole["param_groups"]]}


def unpack(optimizer: Optimizer, tensors: dict[str, Tensor], rest: dict[str, Any] | None) -> None:
    """Restore the state that `pack` returned in an optimizer that was built the same way.

    The first checkpoints, AdamW's, had only tensors: `rest` is None for them.
    """
    rest = _first(optimizer, tensors) if rest is None else rest
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state = {
        int(index): {
            key: _unpack(value, tensors, weights[int(index)]) for key, value in entry.items()
        }
        for index, entry in rest["state"].items()
    }
    groups = optimizer.state_dict()["param_groups"]
    for group, kept in zip(groups, rest["groups"], strict=True):
        for key in _changing(group):  # also a step number that the start did not have
            del group[key]
        group |= {key: value for key, value in kept.items() if key not in OF_RECIPE}
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _first(optimizer: Optimizer, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return what would accompany the tensors of a checkpoint that has nothing else."""
    state: dict[str, Any] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(index, {})[key] = {"tensor": name, "order": list(range(tensor.ndim))}
    return {"state": state, "groups": [_changing(group) for group in optimizer.param_groups]}


def _changing(group: dict[str, Any]) -> dict[str, Any]:
    """Return what may change from step to step in a group; the rest follows from the recipe."""
    return {
        key: value
        for key, value in group.items()
        if isinstance(value, bool | int | float) and key not in OF_RECIPE
    }


def size(optimizer: Optimizer) -> int:
    """Return the bytes of all tensors in the state."""
    return sum(tensor.nbytes for tensor in pack(optimizer)[0].values())


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        order = list(range(value.ndim))
        if is_sliced(value):  # whose layout follows from the weight's
            tensors[name] = value
        else:
            order.sort(key=lambda axis: value.stride(axis), reverse=True)
            tensors[name] = value.permute(order)
        return {"tensor": name, "order": order}
    if isinstance(value, list):
        return [_pack(each, f"{name}.{place}", tensors) for place, each in enumerate(value)]
    return value


def _unpack(value: Any, tensors: dict[str, Tensor], weight: Tensor) -> Any:
    """Return a value of a weight's state, sliced if the weight is."""
    if isinstance(value, dict):
        back = torch.argsort(torch.tensor(value["order"])).tolist()
        return placed(tensors[value["tensor"]].permute(back), weight)
    if isinstance(value, list):
        return [_unpack(each, tensors, weight) for each in value]
    return value
