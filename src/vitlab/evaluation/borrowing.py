"""Using a model without changing it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def borrowed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """In the block the model is on `device`, in evaluation mode; afterwards it is as before.

    That holds for each sub-module's own mode, and if the block fails.
    """
    home = next(model.parameters()).device
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.to(device).eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        model.to(home)
