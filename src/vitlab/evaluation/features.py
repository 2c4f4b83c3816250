"""Features of images, computed by all processes together and held in memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.images import Images
from vitlab.distributed.world import ALONE, World
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import (
    Progress,
    Vectors,
    gathered,
    infer,
    own_batches,
    shape_taken,
    silent,
    stacked,
)
from vitlab.evaluation.probes.feature_options import Pooled
from vitlab.models.model import Model

FEATURES = Pooled()


@dataclass(frozen=True)
class ImageFeatures:
    """The features of a source's images that could be decoded.

    Attributes:
        values: float32 (n, width), memory-mapped where they are cached
        indices: int64 (n,), numbers of the images in the source
        bad: messages about damaged images
        cached: whether they are in a cache
    """

    values: NDArray[np.float32]
    indices: NDArray[np.int64]
    bad: list[str]
    cached: bool = False


def features_in_memory(
    model: Model,
    source: Images,
    compute: Compute,
    taken: Vectors = FEATURES,
    world: World = ALONE,
    progress: Progress = silent,
) -> ImageFeatures:
    """Return the features of a source; of several processes, the first one has them.

    Args:
        model: any
        source: the images, which the processes share
        compute: where and how
        taken: what of the model, one vector per image
        world: the processes
        progress: called after every batch
    """
    own = own_batches(model, source, world)
    found = list(infer(model, source, compute, [taken], only=own, progress=progress))
    values, indices, bad = stacked(found, shape_taken(model, taken))
    (values, indices), bad = gathered(world, (values, indices), bad)
    return ImageFeatures(values, indices, [*bad.values()])
