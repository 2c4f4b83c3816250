"""Feature health without labels: RankMe, and the share of dead channels."""

import numpy as np
from numpy.typing import NDArray

DEAD = 0.01  # of the root mean square deviation of all channels


def feature_health(features: NDArray[np.float32]) -> dict[str, float]:
    """Return `feature_rank` and `dead_features` of images.

    The rank is RankMe (Garrido et al., 2023, equation 1): e to the entropy of the singular values,
    as shares of their sum; at most the smaller of images and channels. A channel is dead whose
    deviation over the images is below a hundredth of the root mean square over all channels, which
    is our choice.

    Args:
        features: (images, channels), two images at least
    """
    values = np.linalg.svd(features.astype(np.float64), compute_uv=False)
    deviations = features.astype(np.float64).std(0)
    least = DEAD * np.sqrt((deviations**2).mean())
    return {
        "feature_rank": _effective_rank(values),
        "dead_features": float((deviations <= least).mean()),
    }


def _effective_rank(values: NDArray[np.float64]) -> float:
    """Return e to the entropy of nonnegative values, as shares of their sum (Roy and Vetterli)."""
    shares = values / max(values.sum(), 1e-30) + 1e-7
    return float(np.exp(-(shares * np.log(shares)).sum()))
