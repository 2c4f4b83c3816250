"""Power laws of the error against compute, and how certain they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError
from vitlab.transfer.spread import LEVEL, t_quantile

LEAST = 3  # points, of which two fix a line


@dataclass(frozen=True)
class PowerLaw:
    """`error = scale * (x / center) ** exponent`.

    Attributes:
        scale: the error at the center
        exponent: negative if the error falls
        center: geometric mean of the x that it was fitted to
        reach: half of the 95% confidence interval of the exponent
        points: that it was fitted to
    """

    scale: float
    exponent: float
    center: float
    reach: float
    points: int

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the errors at x, (n,)."""
        return self.scale * (x / self.center) ** self.exponent

    def spent(self, error: float) -> float:
        """Return the x at which the error is this one."""
        return self.center * (error / self.scale) ** (1 / self.exponent)

    def sentence(self, name: str) -> str:
        """Return the fit in words: its exponent, and the interval of it."""
        return (
            f"{name}: error = {self.scale:.3g} (C / {self.center:.3g})^{self.exponent:.3f}, "
            f"exponent ± {self.reach:.2g} (95%, {self.points} points)."
        )


def fitted(points: Sequence[tuple[float, float]]) -> PowerLaw:
    """Fit a power law by least squares of the errors' logarithms.

    The interval is that of the linear regression, with Student's t for two degrees of freedom less
    than there are points. It takes the points for independent: pass the mean of the runs of one
    setting rather than each run.

    Args:
        points: compute and error, both above 0

    Raises:
        DataError: fewer than three different points, or a value that is not above 0.
    """
    from scipy.stats import linregress  # slow to import

    if len({x for x, _ in points}) < LEAST:
        raise DataError(f"a power law needs {LEAST} different points")
    if min(map(min, points)) <= 0:
        raise DataError("a power law needs compute and errors above 0")
    logs, errors = np.log(np.asarray(points, np.float64)).T
    center = logs.mean()
    line = linregress(logs - center, errors)
    return PowerLaw(
        scale=math.exp(line.intercept),
        exponent=float(line.slope),
        center=math.exp(center),
        reach=float(t_quantile(len(points) - 2, LEVEL) * line.stderr),
        points=len(points),
    )
