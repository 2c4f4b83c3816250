"""Predictions for a source whose images the processes share out."""

import json

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from vitlab.data.loading.order import slice_of
from vitlab.data.sources.source import Source, Subset
from vitlab.distributed.world import World
from vitlab.evaluation.predictions import Predictions, predict, predict_any
from vitlab.models.create import Model


def look(
    world: World,
    model: Model,
    source: Source,
    *,
    device: torch.device,
    precision: str,
    workers: int | None,
) -> Predictions:
    """What `evaluation.predict` gives, each image seen by one process.

    The first process gets everything, in the source's order; the others what is damaged, and none
    of the probabilities.

    Raises:
        ValueError: not one image could be decoded.
    """
    if world.size == 1:
        return predict(model, source, device=device, precision=precision, workers=workers)
    own = np.array(slice_of(len(source), world.rank, world.size), np.int64)
    part = Subset(source, own)
    seen = predict_any(model, part, device=device, precision=precision, workers=workers)
    bad = {int(own[place]): message for place, message in seen.bad.items()}
    said = [json.loads(text) for text in world.texts(json.dumps([len(seen.labels), bad]))]
    lengths = [int(length) for length, _ in said]
    bad = {int(place): message for _, each in said for place, message in each.items()}
    if not sum(lengths):
        raise world.error(next(iter(bad.values()), "there are no images"))
    columns = (seen.probabilities, own[seen.indices])
    rows, places = (_gathered(world, torch.from_numpy(each), lengths).numpy() for each in columns)
    return Predictions(rows, source.labels.take(places), places, bad, seen.seconds)


def _gathered(world: World, rows: Tensor, lengths: list[int]) -> Tensor:
    """All processes' rows behind one another, in the first; none in the others."""
    if not world.first:
        dist.send(rows.contiguous(), 0)
        return rows[:0]
    parts = [rows]
    for rank in range(1, world.size):
        parts.append(rows.new_empty(lengths[rank], *rows.shape[1:]))
        dist.recv(parts[-1], rank)
    return torch.cat(parts)
