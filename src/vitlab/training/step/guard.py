"""No step with a non-finite loss or gradient reaches the weights, and no GPU waits to be asked."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Figures:
    """What the host wants to know of one step.

    Attributes:
        step: its number, from 1
        images: how many it learned from
        loss: summed over them
        correct: how many of them were right
        norm: of the whole gradient, before clipping
    """

    step: int
    images: int
    loss: float
    correct: float
    norm: float

    @property
    def fault(self) -> str:
        """What is not finite, if anything."""
        if not math.isfinite(self.loss):
            return "loss"
        return "" if math.isfinite(self.norm) else "gradient"


class Guard:
    """Takes optimizer steps whose loss and gradient are finite, and reports each step's figures.

    On a CPU, and for optimizers that know no better, the host looks at the figures first. On a GPU
    PyTorch's fused optimizers look themselves: told `found_inf`, a tensor on the device, they leave
    weights and moments as they are (as under a gradient scaler). The host then reads the figures
    of one step while the next is under way; `settle` reads the last ones, before anything is saved
    or written down.

    Args:
        optimizer: what takes the steps
        device: of its weights
        late: whether to read late (None: on a GPU, where the optimizer can)
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: torch.device, late: bool | None = None
    ) -> None:
        able = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self.optimizer: Any = optimizer
        self.late = able and (device.type == "cuda" if late is None else late)
        self.waiting: tuple[int, int, Tensor, torch.cuda.Event | None] | None = None

    def step(self, number: int, images: int, figures: Tensor) -> list[Figures]:
        """Take a step if it is sound.

        Args:
            number: of the step, from 1
            images: how many it learned from
            figures: loss, correct answers and gradient norm on the device, float64 (3,)

        Returns:
            The figures that have become known, of this step or of the one before; after one that is
            not finite nothing was or will be changed by its step.
        """
        if not self.late:
            known = Figures(number, images, *figures.tolist())
            if not known.fault:
                self.optimizer.step()
            return [known]
        self.optimizer.found_inf = (~figures.isfinite().all()).float()
        self.optimizer.step()
        before = self.settle()
        self.waiting = (number, images, *_to_host(figures))
        return before

    def settle(self) -> list[Figures]:
        """The figures that have not been read yet."""
        if self.waiting is None:
            return []
        number, images, figures, copied = self.waiting
        self.waiting = None
        if copied is not None:
            copied.synchronize()
        return [Figures(number, images, *figures.tolist())]


def _to_host(figures: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A copy under way to the host, and how to know that it has come."""
    if figures.device.type != "cuda":
        return figures, None
    there = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
    there.copy_(figures, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return there, copied
