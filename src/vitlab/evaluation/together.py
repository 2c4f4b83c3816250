"""Predictions for a source whose images are shared among processes."""

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from vitlab.data.loading.order import slice_of
from vitlab.data.sources.protocol import Source, Subset
from vitlab.distributed.world import World
from vitlab.errors import DataError
from vitlab.evaluation.predictions import Predictions, predict, predict_any
from vitlab.models.model import Model


def predict_together(
    world: World,
    model: Model,
    source: Source,
    *,
    device: torch.device,
    workers: int | None,
) -> Predictions:
    """Return what `predict` returns, each image having been seen by one process.

    The first process gets everything, in the source's order; the others get the damage and none of
    the probabilities.

    Raises:
        DataError: not one image could be decoded.
    """
    if world.size == 1:
        return predict(model, source, device=device, workers=workers)
    own = np.array(slice_of(len(source), world.rank, world.size), np.int64)
    part = Subset(source, own)
    mine = predict_any(model, part, device=device, workers=workers)
    bad = {int(own[place]): message for place, message in mine.bad.items()}
    gathered = world.gather([len(mine.labels), bad])
    lengths = [int(length) for length, _ in gathered]
    bad = {int(place): message for _, each in gathered for place, message in each.items()}
    if not sum(lengths):
        raise world.shared(DataError(next(iter(bad.values()), "there are no images")))
    columns = (mine.probabilities, own[mine.indices])
    rows, places = (collected(world, torch.from_numpy(each), lengths).numpy() for each in columns)
    return Predictions(rows, source.labels.take(places), places, bad, mine.seconds)


def collected(world: World, rows: Tensor, lengths: list[int]) -> Tensor:
    """Return the rows of all processes, one after the other, in the first; none in the others."""
    if not world.first:
        dist.send(rows.contiguous(), 0)
        return rows[:0]
    parts = [rows]
    for rank in range(1, world.size):
        parts.append(rows.new_empty(lengths[rank], *rows.shape[1:]))
        dist.recv(parts[-1], rank)
    return torch.cat(parts)
