"""Few-shot accuracy of a frozen representation, the ViT paper's quick measure (section 4.1)."""

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import SingleLabels
from vitlab.data.sources.source import Source, Subset
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.probes.few_shot import fewshot, sample_shots
from vitlab.studies.design import Trained, share_column

SHOTS, DRAWS = 5, 10  # the paper's Figures 4, 8, 9, 13 and Table 8: 5 per class; draws: our choice
FEW_SHOT = share_column("few_shot", "5-shot")
Features = tuple[NDArray[np.float32], NDArray[np.int64]]  # (n, width), numbers of the images (n,)


def few_shot(trained: Trained) -> dict[str, float]:
    """Return the test accuracy of a linear model that learns from 5 images of each class.

    A closed-form fit to the frozen features (`vitlab.evaluation.probes.few_shot`), averaged over 10
    draws of the images. They are of the downstream data, if there are any; otherwise of the data
    that the model learned from, all of whose training images may be drawn.

    Source: ViT paper, section 4.1, where it is ImageNet's; big_vision's evaluators/fewshot_lsr.py.

    Returns:
        `few_shot`; nothing where images have several labels, or a class fewer than 5 images.
    """
    splits = trained.downstream or trained.splits
    train, test = splits.train.labels, splits.test.labels
    if not isinstance(train, SingleLabels) or not isinstance(test, SingleLabels):
        return {}
    if np.bincount(train.values, minlength=len(splits.classes)).min() < SHOTS:
        return {}
    drawn = [
        sample_shots(train.values, splits.classes, (SHOTS,), seed)[SHOTS] for seed in range(DRAWS)
    ]
    wanted = np.unique(np.concatenate(drawn))
    values, places = _features(trained, Subset(splits.train, wanted))
    numbers = wanted[places]
    x_test, asked = _features(trained, splits.test)
    found = []
    for each in drawn:
        own = np.isin(numbers, each)  # without those that cannot be decoded
        predicted = fewshot(values[own], train.values[numbers[own]], x_test)
        found.append(float((predicted == test.values[asked]).mean()))
    return {FEW_SHOT.key: float(np.mean(found))}


def _features(trained: Trained, source: Source) -> Features:
    """Return what the classifier sees of each image that can be decoded, in their order."""
    compute = Compute(trained.device, engine="plain", workers=0)
    found = features_in_memory(trained.model, source, compute)
    return found.values, found.indices
