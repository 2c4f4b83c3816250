"""Tensors of a base under those that a delta changed, and the check that it is that base."""

from collections.abc import Mapping

from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.model import Model
from vitlab.weights.assembly import empty
from vitlab.weights.delta_base import DeltaBase
from vitlab.weights.identity import base_of
from vitlab.weights.state import StateDict, fits


def check_base(wanted: DeltaBase, base: Model) -> None:
    """Refuse any base but the one that a delta was made from.

    Raises:
        WeightsError: the fingerprints differ; the message names both models.
    """
    found = base_of(base)
    if found.fingerprint != wanted.fingerprint:
        raise WeightsError(f"wrong base: this delta was made from {wanted}, not from {found}")


def merged(
    config: ModelConfig, changed: Mapping[str, Tensor], base: Mapping[str, Tensor]
) -> StateDict:
    """Return the tensors of a model: the changed ones, and the base's for all others.

    Raises:
        WeightsError: a tensor is missing, unknown, or of another shape.
    """
    expected = empty(config)
    if extra := sorted(changed.keys() - expected.keys()):
        raise WeightsError(f"the delta's tensor {extra[0]!r} is not part of {config.name}")
    tensors: StateDict = {}
    for name, want in expected.items():
        tensor = changed[name] if name in changed else base.get(name)
        if tensor is None or not fits(tensor, want):
            problem = "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
            need = f"{want.dtype} {tuple(want.shape)}"
            raise WeightsError(f"delta and base do not match: {name!r} is {problem}, not {need}")
        tensors[name] = tensor
    return tensors
