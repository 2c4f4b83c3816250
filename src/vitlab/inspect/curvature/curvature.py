"""The figures of the loss around a model's weights, for one row of a table."""

from torch import Tensor

from vitlab.inspect.curvature.hessian import hessian_eigenvalues, hessian_trace
from vitlab.inspect.curvature.mean_loss import MeanLoss, at_least
from vitlab.inspect.curvature.sharpness import gradient_norm, noise_increase, sharpness
from vitlab.models.model import Model


def curvature(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    seed: int = 0,
    top: int = 3,
    steps: int = 20,
    samples: int = 5,
    rho: float = 0.05,
    noise: float = 0.1,
    hessian_images: int = 128,
) -> dict[str, float]:
    """Compute how curved the mean cross-entropy is around a model's weights.

    Args:
        model: any with a classifier; it stays as it is
        images: normalized, (B, channels, H, W)
        labels: the class of each image, int64 (B,)
        seed: of the images of the Hessian, and of all random vectors
        top: eigenvalues of the Hessian
        steps: products with the Hessian for these, at most
        samples: random vectors of the trace, and of the noise
        rho: distance of the step of `sharpness`, which is of groups of 128 images
        noise: size of `noise_increase`, relative to the weights
        hessian_images: the Hessian is of so many images, drawn at random, for each of its products
            takes about 12 times as long as a forward pass

    Returns:
        `loss` and `gradient_norm`; `hessian_max`, the largest eigenvalue of the Hessian, and
        `hessian_2` … up to `top`; `hessian_max_error`, within what distance of `hessian_max` the
        Hessian has an eigenvalue; `hessian_min`, the most negative one that was seen;
        `hessian_trace` and its standard error, `hessian_trace_error`; `sharpness` and
        `noise_increase`, in nats.

    Raises:
        OptionError: as of `MeanLoss`, and settings that cannot be.
    """
    at_least("hessian_images", hessian_images, 1)
    loss = MeanLoss(model, images, labels)
    some = loss.drawn(hessian_images, seed)
    found = hessian_eigenvalues(some, top, steps=steps, seed=seed)
    trace = hessian_trace(some, samples, seed=seed)
    others = {f"hessian_{rank}": float(each) for rank, each in enumerate(found.values[1:], 2)}
    return {
        "loss": loss.value(),
        "gradient_norm": gradient_norm(loss),
        "hessian_max": float(found.values[0]),
        "hessian_max_error": float(found.errors[0]),
        **others,
        "hessian_min": found.least,
        "hessian_trace": trace.mean,
        "hessian_trace_error": trace.error,
        "sharpness": sharpness(loss, rho),
        "noise_increase": noise_increase(loss, noise, samples=samples, seed=seed),
    }
