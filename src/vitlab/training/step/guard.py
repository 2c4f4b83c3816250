"""Optimizer steps that are taken only if loss and gradient are finite, without a GPU waiting."""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Figures:
    """The figures of one step; reading those of a GPU waits until they have come to the host.

    Attributes:
        step: its number, from 1
        images: number of images it learned from
        numbers: float64 (2 + figures,): summed loss, what the objective adds up beside it, norm of
            the whole gradient before clipping
        late: whether `numbers` are best read while the next step runs
        names: of what the objective adds up, such as the number of correct answers
    """

    step: int
    images: int
    numbers: Tensor
    late: bool = False
    copied: torch.cuda.Event | None = None
    names: tuple[str, ...] = ("correct",)

    @classmethod
    def of(
        cls,
        step: int,
        images: int,
        numbers: Tensor,
        late: bool = False,
        names: tuple[str, ...] = ("correct",),
    ) -> Self:
        """Start to copy the figures of a step to the host."""
        if not late or numbers.device.type != "cuda":
            return cls(step, images, numbers.cpu(), late, names=names)
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return cls(step, images, host, late, copied, names)

    @property
    def loss(self) -> float:
        """The loss, summed over the images."""
        return self._read()[0]

    @property
    def sums(self) -> dict[str, float]:
        """Loss and the objective's figures, summed over the images, and how many these are."""
        values = zip(("loss", *self.names), self._read(), strict=False)
        return dict(values) | {"images": float(self.images)}

    @property
    def norm(self) -> float:
        """The norm of the whole gradient, before clipping."""
        return self._read()[-1]

    @property
    def fault(self) -> str:
        """What is not finite, if anything: `loss`, `gradient` or the name of a figure."""
        named = zip(("loss", *self.names, "gradient"), self._read(), strict=True)
        wrong = [name for name, value in named if not math.isfinite(value)]
        return next((name for name in ("loss", "gradient", *wrong) if name in wrong), "")

    def _read(self) -> list[float]:
        if self.copied is not None:
            self.copied.synchronize()
        return self.numbers.tolist()


def can_skip(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer checks by itself, on the device, whether to take a step.

    PyTorch's fused optimizers do: given `found_inf`, a tensor on the device, they leave weights and
    moments as they are (as under a gradient scaler).
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def take_step(optimizer: Any, numbers: Tensor, late: bool) -> bool:
    """Take an optimizer step unless loss or gradient is not finite.

    Args:
        optimizer: with gradients in its weights
        numbers: as in `Figures`, on the device
        late: let the optimizer check, which `can_skip` must allow; else the host waits and checks

    Returns:
        Whether the step was taken, as far as the host knows.
    """
    finite = numbers.isfinite().all()
    if late:
        optimizer.found_inf = (~finite).float()
    elif not finite:
        return False
    optimizer.step()
    return True


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running statistics of a model's batch norms, which a forward pass updates."""
    norms = [each for each in model.modules() if getattr(each, "track_running_stats", False)]
    return [buffer for norm in norms for buffer in norm.buffers(recurse=False)]


def undo_unless_finite(statistics: list[Tensor], before: list[Tensor], numbers: Tensor) -> None:
    """Restore running statistics, on their device, if the step's numbers are not finite.

    Args:
        statistics: as the step's forward passes left them
        before: as they were before the step
        numbers: as in `Figures`
    """
    if statistics:
        finite = numbers.isfinite().all()
        for now, old in zip(statistics, before, strict=True):
            now.copy_(torch.where(finite.to(now.device), now, old))
