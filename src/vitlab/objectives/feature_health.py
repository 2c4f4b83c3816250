"""Feature health without labels: RankMe, LiDAR, and the share of dead channels."""

import numpy as np
from numpy.typing import NDArray

DEAD = 0.01  # of the root mean square deviation of all channels
WITHIN = 1e-4  # added to the variance of a channel within an image, as in the paper


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


def lidar(views: NDArray[np.float32]) -> float:
    """Return the rank of what tells images apart whatever their crop.

    LiDAR (Thilak et al., 2024, equations 1 to 4) takes each image for a class and its crops for the
    images of it: e to the entropy of the eigenvalues of linear discriminant analysis, as shares of
    their sum; at most the channels, and the images less one.

    Args:
        views: features (images, crops, channels), of at least two images with two crops each
    """
    each = views.astype(np.float64)
    middles = each.mean(1)
    apart, own = middles - middles.mean(0), (each - middles[:, None]).reshape(-1, each.shape[2])
    between = apart.T @ apart / len(apart)
    within = own.T @ own / len(own) + WITHIN * np.eye(each.shape[2])
    root = np.linalg.cholesky(within)
    half = np.linalg.solve(root, between)
    return _effective_rank(np.linalg.eigvalsh(np.linalg.solve(root, half.T)).clip(0))


def _effective_rank(values: NDArray[np.float64]) -> float:
    """Return e to the entropy of nonnegative values, as shares of their sum (Roy and Vetterli)."""
    shares = values / max(values.sum(), 1e-30) + 1e-7
    return float(np.exp(-(shares * np.log(shares)).sum()))
