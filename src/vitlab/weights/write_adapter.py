"""Writing an adapter of peft: the changes of layers as products of low rank."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import pad

from vitlab.weights.formats.entry import Entry
from vitlab.weights.formats.format_api import cannot
from vitlab.weights.sharded import Fields
from vitlab.weights.state import StateDict

START = "base_model.model."  # of names in a folder of peft


def adapter_of(
    entries: Iterable[Entry], after: StateDict, before: StateDict, head: str,
    spellings: dict[str, str],
) -> tuple[StateDict, Fields]:  # fmt: skip
    """Return the tensors of an adapter, and what adapter_config.json says of them.

    Args:
        entries: the names in the library that the base is of
        after: a model's tensors
        before: those of its base
        head: prefix of the classifier, which is kept whole
        spellings: parts of names that models have in memory, and what files have in their place

    Raises:
        WeightsError: no layer was changed, or more than by a product of low rank.
    """
    tensors = StateDict()
    factors = dict[str, tuple[Tensor, Tensor]]()
    whole = set[str]()
    for entry in entries:
        new = entry.write([after[own] for own in entry.ours])
        old = entry.write([before.get(own, torch.zeros_like(after[own])) for own in entry.ours])
        for name, one, other in zip(entry.theirs, new, old, strict=True):
            for spelling, usual in spellings.items():
                name = name.replace(usual, spelling.strip("^").replace("\\", ""))
            layer, _, part = name.rpartition(".")
            if "".join(entry.ours).startswith(head):
                tensors[START + name] = one.contiguous()
                whole.add(layer)
            elif not torch.equal(one, other):
                if (one.ndim, part, one.shape) != (2, "weight", other.shape):
                    raise cannot("peft", f"the change of {name}: only of layers and a classifier")
                factors[layer] = _factors(layer, one, other)
    rank = max((len(a) for _, a in factors.values()), default=0)
    if not rank:
        raise cannot("peft", "a model of which no layer was changed")
    for layer, (b, a) in factors.items():
        missing = rank - len(a)
        tensors[f"{START}{layer}.lora_A.weight"] = pad(a, (0, 0, 0, missing)).contiguous()
        tensors[f"{START}{layer}.lora_B.weight"] = pad(b, (0, missing)).contiguous()
    return tensors, {
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": sorted(factors),
        "modules_to_save": sorted(whole), "inference_mode": True,
    }  # fmt: skip


def _factors(layer: str, after: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """B (outputs, rank) and A (rank, inputs), whose product is what a weight was changed by."""
    change = after.double() - before.double()
    wide = len(after) < after.shape[1]
    change = change.T if wide else change
    squares, vectors = torch.linalg.eigh(change.T @ change)  # faster than singular values
    noise = torch.finfo(after.dtype).eps * after.abs().max() * math.sqrt(len(change))
    right = vectors[:, squares > noise**2]
    if right.shape[1] > len(right) // 2:
        raise cannot("peft", f"the change of {layer}, which is not of low rank: use tune=lora")
    left = (change @ right).float()
    right = right.float()
    return (right, left.T) if wide else (left, right.T)
