"""Which output of a model stands for which of ImageNet's classes.

A class is named by its WordNet id. `imagenet.txt` lists the 1,000 ids in order, with the marks `a`
and `r` on those that ImageNet-A and ImageNet-R use; `objectnet.txt` lists the 113 folders of
ObjectNet that share classes with ImageNet, each with the ids of those classes.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.model import Model
from vitlab.models.packed import Packed

CLASSES = 1000


@cache
def _lines(name: str) -> tuple[tuple[str, ...], ...]:
    text = (files("vitlab.evaluation.protocols") / name).read_text(encoding="utf-8")
    return tuple(tuple(line.split()) for line in text.splitlines())


def imagenet(mark: str = "") -> tuple[str, ...]:
    """Return the WordNet ids of ImageNet's classes in order, or of those with a mark (a, r)."""
    return tuple(wnid for wnid, *marks in _lines("imagenet.txt") if not mark or mark in marks)


def objectnet() -> dict[str, tuple[str, ...]]:
    """Return the WordNet ids of each ObjectNet folder that shares classes with ImageNet."""
    return {folder: tuple(wnids) for folder, *wnids in _lines("objectnet.txt")}


def is_wnid(text: str) -> bool:
    """Return whether a text is a WordNet id, as n01440764."""
    return re.fullmatch(r"n\d{8}", text) is not None


def outputs_of(
    labels: Sequence[str], count: int, wanted: Sequence[str], what: str
) -> tuple[NDArray[np.int64], str]:
    """Return which of `count` outputs stand for the wanted classes, and how that was found.

    By the labels where they are WordNet ids; 1,000 outputs without such labels are taken in
    ImageNet's order.

    Args:
        labels: names of the outputs, or none
        count: number of outputs
        wanted: WordNet ids
        what: whose outputs these are, for a message

    Raises:
        OptionError: outputs are missing, or it is unknown which is which.
    """
    if any(map(is_wnid, labels)):
        place = {label: number for number, label in enumerate(labels)}
        if missing := [wnid for wnid in wanted if wnid not in place]:
            raise OptionError(
                f"{what} lacks {len(missing):,} of the {len(wanted):,} classes that compete, such "
                f"as {missing[0]}: all of them are needed"
            )
        return np.array([place[wnid] for wnid in wanted], np.int64), ""
    if count != CLASSES:
        raise OptionError(
            f"{what} has {count:,} classes that are not named by WordNet ids, so it is unknown "
            "which are ImageNet's: name them so, or use 1,000 in ImageNet's order"
        )
    order = {wnid: number for number, wnid in enumerate(imagenet())}
    note = f"{what} does not name its classes by WordNet ids: taken in ImageNet's order"
    return np.array([order[wnid] for wnid in wanted], np.int64), note


class SelectedOutputs(Model):
    """A model of which only some outputs compete, in a given order.

    Args:
        model: any classifier; it stays where it is, and is shared
        columns: which outputs
    """

    columns: Tensor

    def __init__(self, model: Model, columns: NDArray[np.int64]) -> None:
        nn.Module.__init__(self)
        self.config = replace(model.config, classes=len(columns), labels=())
        self.provenance, self.source, self.model = model.provenance, model.source, model
        self.seen = model.seen
        home = next(model.parameters()).device
        self.register_buffer("columns", torch.from_numpy(columns).to(home), persistent=False)

    def forward(self, images: Tensor | Packed) -> Tensor:
        """Compute class scores: (B, channels, H, W) -> (B, chosen outputs)."""
        return self.model(images)[:, self.columns]
