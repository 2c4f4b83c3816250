"""Using a model without changing it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vitlab.models.layers import evaluating


@contextmanager
def borrowed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """In the block the model is on `device`, in evaluation mode; afterwards it is as before.

    That holds for each sub-module's own mode, and if the block fails.
    """
    home = next(model.parameters()).device
    with evaluating(model):
        try:
            model.to(device)
            yield
        finally:
            model.to(home)
