"""A clock on which time passes only as a run learns: budgets and forecasts on any machine."""

import time

import pytest
import torch


class SlowClock:
    """A clock on which time passes only as images are learned from.

    Attributes:
        seconds: of an image
        images: that were learned from
    """

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        self.seconds, self.ahead, self.images = seconds, 0.0, 0
        patch.setattr(time, "monotonic", self.now)
        patch.setitem(CLOCKS, "now", self)

    def now(self) -> float:
        """Return the time, a little later each time."""
        self.ahead += 1e-6
        return self.ahead


CLOCKS: dict[str, SlowClock] = {}


def slowed(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Change no image; the clock goes on."""
    clock = CLOCKS["now"]
    clock.ahead += clock.seconds * len(images)
    clock.images += len(images)
    return images
