"""The file beside weights by which a model tells how far an image is from its training images."""

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.unlike import NAMES, OLD, Unlike
from vitlab.weights.formats.entry import Entry
from vitlab.weights.identity import checked
from vitlab.weights.sharded import Fields
from vitlab.weights.source import StoredTensors


def read_unlike(source: StoredTensors, config: ModelConfig, sums: Fields) -> Unlike | None:
    """Return what a file keeps of the training images; None if nothing.

    Args:
        source: a delta, or the file beside a folder's tensors
        config: of the model
        sums: the sha256 of all tensors that were saved

    Raises:
        WeightsError: it is damaged, or does not fit the model.
    """
    if NAMES[0] not in sums:
        return None
    layer, *tensors = read_checked(source, NAMES, sums)
    shapes = [tuple(each.shape) for each in tensors]
    number = int(layer) if layer.dtype == torch.int64 and layer.numel() == 1 else 0
    width = config.layer_width(number)
    axes = (*shapes[1], 0, 0)[1]
    count = (*shapes[3], 0)[0]
    wanted = [(width,), (width, axes), (axes + 1,), (count, width), (1,)]
    if not width or not axes or not count or shapes != wanted:
        raise WeightsError(
            f"{source.path}: {NAMES[2]} {shapes[1]} of layer {number} does not fit {config.name}"
        )
    real = all(each.dtype == torch.float32 and each.isfinite().all() for each in tensors)
    if not real or not tensors[-1] > 0:
        raise WeightsError(f"{source.path}: {NAMES[2]} and {NAMES[5]} are no axes and no distance")
    return Unlike(number, *tensors)


def note_old(source: StoredTensors, sums: Fields) -> tuple[str, ...]:
    """Return the line for a file with the distance that models had before; none for others."""
    if OLD not in sums:
        return ()
    return (
        f"{source.path}: how far an image is from the training images is left out, since it is "
        "measured otherwise now: vitlab probe or vitlab finetune, once more, gives a model with it",
    )


def read_checked(source: StoredTensors, names: tuple[str, ...], sums: Fields) -> list[Tensor]:
    """Return tensors beside a model's, which are compared with their sha256.

    Raises:
        WeightsError: one is damaged.
    """
    entry = checked(Entry(names, names, list, list), sums, str(source.path))
    return entry.read([source.read(name, exact=True) for name in names])
