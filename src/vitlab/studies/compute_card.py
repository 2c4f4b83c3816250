"""The ViT paper's model card of compute: exaFLOPs, TPUv3-core-days, and how many fewer a ViT takes.

"Vision Transformers generally outperform ResNets with the same computational budget": they take 2
to 4 times less compute for the same accuracy (4.4), averaged over ImageNet, CIFAR-10, CIFAR-100,
Pets and Flowers. Here that is computed from Table 6: a power law is fitted to the mean errors of
each family, and solved for the compute that an accuracy takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

import numpy as np
from scipy.stats import linregress

from vitlab.errors import DataError
from vitlab.evaluation.statistics import t_quantile
from vitlab.models.config import ModelConfig
from vitlab.models.cost import exaflops
from vitlab.models.model import Model
from vitlab.studies.base import table

FAMILIES = ("ViT", "ResNet", "hybrid")
JFT_IMAGES, JFT_EPOCHS = 303e6, 7.0
ACCURACIES = (0.94, 0.95)  # within both families' range
CORE_DAYS = {("ViT-H/14", 14): 2500.0, ("ViT-L/16", 14): 680.0}  # of a TPUv3 (ViT, Table 2)
I21K = "ViT-L/16 on ImageNet-21k"
OTHERS = {"BiT-L": 9900.0, "Noisy Student": 12300.0, I21K: 230.0}
LEAST = 3  # points of a law, of which two fix a line


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
        reach=t_quantile(len(points) - 2) * line.stderr,
        points=len(points),
    )


@dataclass(frozen=True)
class PrintedRun:
    """A line of Table 6: a model after so many epochs of JFT-300M.

    Attributes:
        epochs: of pre-training
        imagenet: accuracy after fine-tuning
        average: mean accuracy on five sets
        exaflops: 10^18 operations of pre-training
    """

    epochs: int
    imagenet: float
    average: float
    exaflops: float


PRINTED = tuple(
    (model, PrintedRun(epochs, sets[0], fmean(sets), operations))
    for model, runs in table("compute").items()
    for epochs, *sets, operations in runs
)


def family_of(model: str) -> str:
    """Return the family that a model of Table 6 belongs to."""
    return "hybrid" if "+" in model else "ViT" if model.startswith("ViT") else "ResNet"


def pace() -> float:
    """Return the exaFLOPs of a TPUv3-core-day, the mean of the paper's two models that have both.

    They are 15% above and below it.
    """
    known = {(model, run.epochs): run.exaflops for model, run in PRINTED}
    return geometric_mean([known[each] / days for each, days in CORE_DAYS.items()])


def training_work(
    model: Model | ModelConfig, images: float = JFT_IMAGES, epochs: float = JFT_EPOCHS
) -> dict[str, float]:
    """Return the work of training a model: `exaflops`, and `tpu_v3_core_days` at the paper's pace.

    Args:
        model: at the image size of the training
        images: in the training set; JFT-300M has 303 million
        epochs: passes over them; most of the paper's models take 7
    """
    found = exaflops(model, images, epochs)
    return {"exaflops": found, "tpu_v3_core_days": found / pace()}


def times_less(accuracy: float) -> float:
    """Return how many times the compute of a ViT a ResNet takes to a mean accuracy on five sets."""
    vit, resnet = (printed_law(family).spent(1 - accuracy) for family in FAMILIES[:2])
    return resnet / vit


def card() -> list[str]:
    """Return the card's headline, computed from the paper's figures."""
    ratios = " and ".join(f"{times_less(each):.1f} times at {each:.0%}" for each in ACCURACIES)
    known = {model: days for (model, _), days in CORE_DAYS.items()} | OTHERS
    days = ", ".join(f"{model} {count:,.0f}" for model, count in known.items())
    return [
        *(printed_law(each).sentence(f"{each}, paper, mean of five sets") for each in FAMILIES[:2]),
        f"By these laws of the paper's Table 6, a ResNet takes the compute of a ViT {ratios} mean "
        f"accuracy on five sets: the card's 2 to 4 times. TPUv3-core-days (Table 2): {days}, "
        f"which is {OTHERS[I21K] / 8:.0f} days on 8 cores (the card says 30); about "
        f"{pace():.1f} exaFLOPs a day.",
    ]


def printed_law(family: str, figure: str = "average") -> PowerLaw:
    """Return the law of a family in Table 6, of its `average` or `imagenet` accuracy."""
    own = (run for name, run in PRINTED if family_of(name) == family)
    return fitted([(run.exaflops * 1e18, 1 - getattr(run, figure)) for run in own])
