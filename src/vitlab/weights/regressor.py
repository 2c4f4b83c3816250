"""The file of a regressor: a layer in `regress.safetensors`, beside the run's model.

With it are the training images' mean and deviation of each target, which its outputs are measured
by.
"""

from pathlib import Path

import torch
from torch import Tensor

from vitlab.errors import OptionError, WeightsError
from vitlab.files import REGRESS
from vitlab.models.heads.regress import Regressor, Targets
from vitlab.models.model import Model
from vitlab.weights.beside import HeadFile, load_beside


def load_regressor(run: str | Path) -> Regressor:
    """Load the regressor of a run of `--task regress`.

    Raises:
        WeightsError: none is there, or it is damaged or of another model.
    """
    model, about, tensors = load_beside(run, NUMBERS)
    if not (tensors["scale"][1] > 0).all():
        raise WeightsError(
            f"{Path(run) / REGRESS}: tensor scale has deviations that are not above 0"
        )
    return Regressor(model, about, **{name: each.numpy() for name, each in tensors.items()})


def _expect_tensors(model: Model, about: Targets) -> dict[str, Tensor]:
    """Return the tensors of a regressor, without memory."""
    if not about.targets:
        raise OptionError("it has no targets")
    count = len(about.targets)
    config = model.config
    outputs = count * (1 + about.spread)
    features = config.features * config.answers
    shapes = {"weight": (outputs, features), "bias": (outputs,), "scale": (2, count)}
    return {
        name: torch.empty(shape, dtype=torch.float64, device="meta")
        for name, shape in shapes.items()
    }


NUMBERS = HeadFile(REGRESS, Targets, _expect_tensors, "vitlab train TABLE --task regress")
