"""Each process's share of a batch, and the passes it makes with it."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from vitlab.data.loading.batch import Batch
from vitlab.distributed.world import World
from vitlab.models.packed import Packed


def counted(batch: Batch, world: World) -> Batch:
    """Return a process's share of a batch with the count and the damage of all shares."""
    total, damaged = world.sums(len(batch), len(batch.bad))
    if not damaged:
        return replace(batch, total=total)
    bad = [(int(place), str(text)) for each in world.gather(batch.bad) for place, text in each]
    return replace(batch, total=total, bad=bad)


def largest_share(batch: int, size: int) -> int:
    """Return the most images that one of `size` processes has of a batch, in whole pairs."""
    return min(batch, 2 * -(-batch // (2 * size)))


def passes(share: Batch, micro_batch: int, world: World, batch: int) -> list[tuple[Batch, int]]:
    """Return the pieces of a process's share, each with the number of its images that count.

    Gradients are exchanged within the passes, so every process makes equally many. A process that
    lacks images for a pass, because its own were damaged, sends one black image that counts as 0.

    Args:
        share: not empty unless there are other processes
        micro_batch: images per pass (0: the whole share)
        world: the processes that share the batch
        batch: images in a whole batch
    """
    if world.size == 1:
        return [(piece, len(piece)) for piece in share.pieces(micro_batch or len(share))]
    micro_batch -= micro_batch % 2 if micro_batch > 1 else 0  # pairs of images are mixed
    count = -(-largest_share(batch, world.size) // micro_batch) if micro_batch else 1
    pieces = list(share.pieces(micro_batch or max(1, len(share))))
    idle = [(_black(share), 0)] * (count - len(pieces))
    return [(piece, len(piece)) for piece in pieces] + idle


def _black(share: Batch) -> Batch:
    """Return one black image, with its views, in place of a process's share."""
    black: dict[str, Any] = {
        name: value.new_zeros(1, *value.shape[1:])
        for name, value in vars(share).items()
        if isinstance(value, Tensor)
    }
    if isinstance(share.images, Packed):
        black["images"] = share.images.blank()
    return replace(share, **black, views=tuple(_black(view) for view in share.views))
