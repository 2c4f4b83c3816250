"""Power laws of the error against compute, and how certain they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError
from vitlab.transfer.spread import LEVEL, t_quantile

LEAST = 3  # points, of which two fix a line
NONE = 1e-3  # a floor below this share of the smallest error is none


@dataclass(frozen=True)
class PowerLaw:
    """`error = scale * (x / center) ** exponent + floor`.

    Attributes:
        scale: the error at the center, less the floor
        exponent: negative if the error falls
        floor: what the error falls to; 0 unless it was fitted
        center: geometric mean of the x that it was fitted to
        reach: half of the 95% confidence interval of the exponent
        floor_reach: the same of the floor; infinite if no floor above 0 was found
        points: that it was fitted to
    """

    scale: float
    exponent: float
    floor: float
    center: float
    reach: float
    floor_reach: float
    points: int

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the errors at x, (n,)."""
        return self.scale * (x / self.center) ** self.exponent + self.floor


def fitted(x: Sequence[float], error: Sequence[float], *, floor: bool = False) -> PowerLaw:
    """Fit a power law by least squares of the errors' logarithms.

    The intervals are those of the linearized fit (`scipy.optimize.curve_fit`) with Student's t for
    as many degrees of freedom as there are points more than parameters. They take the points for
    independent: pass the mean of the runs of one setting rather than each run.

    Args:
        x: compute, above 0, (n,)
        error: above 0, (n,)
        floor: fit an error that no compute gets below, too

    Raises:
        DataError: fewer points than parameters and one more, a value that is not above 0, or no
            fit is found.
    """
    from scipy.optimize import curve_fit  # slow to import

    xs, errors = np.asarray(x, np.float64), np.asarray(error, np.float64)
    least = LEAST + floor
    if len(xs) < least or len(np.unique(xs)) < least:
        raise DataError(f"a power law needs {least} different points, not {len(np.unique(xs))}")
    if not (xs > 0).all() or not (errors > 0).all():
        raise DataError("a power law needs compute and errors above 0")
    center = float(np.exp(np.log(xs).mean()))
    logs = np.log(xs / center)
    slope, offset = np.polyfit(logs, np.log(errors), 1)
    start, low, high = [offset, slope], [-np.inf, -np.inf], [np.inf, np.inf]
    if floor:
        start, low, high = [offset, slope, errors.min() / 2], [*low, 0.0], [*high, errors.min()]

    def model(z: NDArray[np.float64], a: float, b: float, c: float = 0.0) -> NDArray[np.float64]:
        return np.log(np.exp(a + b * z) + c)

    try:
        found, covariance = curve_fit(model, logs, np.log(errors), start, bounds=(low, high))
    except RuntimeError as error_:
        raise DataError(f"no power law fits: {error_}") from error_
    quantile = t_quantile(len(xs) - len(found), LEVEL)
    reaches = quantile * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    if floor and found[2] < NONE * errors.min():
        return replace(fitted(x, error), floor_reach=math.inf)
    return PowerLaw(
        scale=math.exp(found[0]),
        exponent=float(found[1]),
        floor=float(found[2]) if floor else 0.0,
        center=center,
        reach=float(reaches[1]),
        floor_reach=float(reaches[2]) if floor else 0.0,
        points=len(xs),
    )


def sentence(name: str, law: PowerLaw) -> str:
    """Return a fit in words: its exponent, the interval of it, and its floor if it has one."""
    text = (
        f"{name}: error = {law.scale:.3g} (C / {law.center:.3g})^{law.exponent:.3f}, exponent "
        f"± {law.reach:.2g} (95%, {law.points} points)"
    )
    if law.floor_reach:
        known = math.isfinite(law.floor_reach)
        text += f", floor {law.floor:.3g} ± {law.floor_reach:.2g}" if known else ", no floor found"
    return text + "."


def law_of(points: Sequence[tuple[float, float]], *, floor: bool = False) -> PowerLaw | None:
    """Return the law of some points, if there are enough of them, or one more for a floor."""
    if len({x for x, _ in points}) < LEAST + 2 * floor:
        return None
    try:
        return fitted(*zip(*points, strict=True), floor=floor)
    except DataError:
        return None


def sentences(name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    """Return the law of some points in words, without a floor and with one, where there is one."""
    laws = {name: law_of(points), f"{name}, with a floor": law_of(points, floor=True)}
    return [sentence(each, law) for each, law in laws.items() if law]
