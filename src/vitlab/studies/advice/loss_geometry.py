"""How curved the loss is around trained weights: figures and arrays of a run, and their pictures.

The loss is the mean cross-entropy of training images without augmentation, label smoothing or
dropout, the same images for every run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.probed_images import probed_images
from vitlab.files import staged_file
from vitlab.inspect.curvature.curvature import curvature
from vitlab.inspect.curvature.landscape import LossSurface, loss_surface
from vitlab.inspect.curvature.mean_loss import MeanLoss
from vitlab.inspect.curvature.spectrum import Spectrum, hessian_spectrum
from vitlab.studies.grid.design import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARRAYS = "loss-geometry.npz"
IMAGES, HESSIAN_IMAGES = 256, 128
STEPS = 10  # products with the Hessian for its spectrum; the largest eigenvalue may take twice them
SAMPLES = 3
RADIUS, POINTS = 0.5, 7
KEPT = ("hessian_max", "hessian_trace", "sharpness", "noise_increase")


def loss_geometry(trained: Trained) -> dict[str, float]:
    """Return figures of `vitlab.inspect.curvature`, and leave a spectrum and a surface in a file.

    Both are of the images that the Hessian is of.

    Raises:
        OptionError, DataError: images with several labels, or a model without gradients.
    """
    device = trained.device
    with borrowed(trained.model, device):
        probed = probed_images(
            trained.model, trained.splits.train, IMAGES, batch=IMAGES,
            generator=np.random.default_rng(0), compute=Compute(device, engine="plain"),
        )  # fmt: skip
        images, labels = probed.normalized(probed.pixels), probed.labels.to(device)
        found = curvature(
            trained.model, images, labels, top=1, steps=2 * STEPS, samples=SAMPLES,
            hessian_images=HESSIAN_IMAGES,
        )  # fmt: skip
        some = MeanLoss(trained.model, images, labels).drawn(HESSIAN_IMAGES, seed=0)
        spectrum = hessian_spectrum(some, 1, steps=min(STEPS, some.count))
        surface = loss_surface(some, radius=RADIUS, points=POINTS)
    with staged_file(trained.folder / ARRAYS) as draft:
        np.savez(
            draft, nodes=spectrum.nodes, weights=spectrum.weights,
            steps=surface.steps, losses=surface.losses,
        )  # fmt: skip
    return {key: found[key] for key in KEPT}


def geometry_drawings(folders: Mapping[str, Sequence[Path]]) -> "dict[str, Figure]":
    """Draw the spectrum and the surface of the first run of each arm that has them.

    Args:
        folders: of the runs, by what is written above the panels
    """
    from vitlab.inspect import plots

    files = {name: runs[0] / ARRAYS for name, runs in folders.items()}
    kept = {name: np.load(file) for name, file in files.items() if file.is_file()}
    if not kept:
        return {}
    spectra = {name: Spectrum(each["nodes"], each["weights"]) for name, each in kept.items()}
    surfaces = {name: LossSurface(each["steps"], each["losses"]) for name, each in kept.items()}
    return {
        "spectra of the Hessian": plots.hessian_spectrum(spectra),
        "loss around the weights": plots.loss_surface(surfaces),
    }
