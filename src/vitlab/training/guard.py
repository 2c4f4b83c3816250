"""The guard of a training step: it is taken only if loss and gradient are finite.

Nothing here makes the host wait for a GPU, but for optimizers that cannot check by themselves.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.errors import DeviceError
from vitlab.units import storage


@dataclass
class Figures:
    """The figures of one step; reading those of a GPU waits until they have come to the host.

    Attributes:
        step: its number, from 1
        images: number of images it learned from
        numbers: float64 (2 + figures,): summed loss, what the objective adds up beside it, norm of
            the whole gradient before clipping; on their way to the host from the start
        late: whether `numbers` are best read while the next step runs
        names: of what the objective adds up, such as the number of correct answers
    """

    step: int
    images: int
    numbers: Tensor
    late: bool = False
    names: tuple[str, ...] = ("correct",)
    copied: torch.cuda.Event | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Start to copy the figures to the host."""
        given = self.numbers
        if not self.late or given.device.type != "cuda":
            self.numbers = given.cpu()
            return
        self.numbers = torch.empty(given.shape, dtype=given.dtype, pin_memory=True)
        self.numbers.copy_(given, non_blocking=True)
        self.copied = torch.cuda.Event()
        self.copied.record()

    @property
    def loss(self) -> float:
        """The loss, summed over the images."""
        return self._read()["loss"]

    @property
    def sums(self) -> dict[str, float]:
        """Loss and the objective's figures, summed over the images, and how many these are."""
        values = self._read()
        del values["gradient"]
        return values | {"images": float(self.images)}

    @property
    def fault(self) -> str:
        """What is not finite, if anything: `loss`, `gradient` or the name of a figure."""
        wrong = [name for name, value in self._read().items() if not math.isfinite(value)]
        return next((name for name in ("loss", "gradient", *wrong) if name in wrong), "")

    def _read(self) -> dict[str, float]:
        if self.copied is not None:
            self.copied.synchronize()
        return dict(zip(("loss", *self.names, "gradient"), self.numbers.tolist(), strict=True))


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


@contextmanager
def out_of_memory_explained(size: int) -> Iterator[None]:
    """Turn a lack of GPU memory into one line for the user.

    Raises:
        DeviceError: so many images were too many.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "MPS backend out of" not in str(error):
            raise
        have = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
        of = f" of the GPU's {storage(have)}" if have else ""
        raise DeviceError(
            f"out of memory{of} with {size} images per pass: --micro-batch auto finds the number "
            "that fits, --checkpoint-activations makes more fit"
        ) from error
