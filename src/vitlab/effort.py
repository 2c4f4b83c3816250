"""Effort: how thoroughly figures are worked out, which decides nothing that a run learns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How often something is repeated for a better figure; the defaults are the product's.

    It is no option of the command line, nor is it in `run.toml`: tests and trials take less.

    Attributes:
        folds: of the cross-validation of a head that is fitted before training, and of the
            threshold above which an image is unlike the training images
        resamples: how often test images are drawn again for intervals, at most
        memory: whether the memory of a step without labels is measured even where there is plenty
        report: whether the page of a run is drawn, if the run is to have one
        read_first: images of a data set that are read before the first step, so that the run knows
            it by its contents; larger sets with splits of their own are trained on at once
    """

    folds: int = 5
    resamples: int = 1000
    memory: bool = True
    report: bool = True
    read_first: int = 10_000


FULL = Effort()
