"""The file of a segmenter: a classifier in `segment.safetensors`, beside the run's model."""

from pathlib import Path

import torch
from torch import Tensor

from vitlab.errors import OptionError, WeightsError
from vitlab.files import SEGMENT
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.heads.queries import check_queries
from vitlab.models.heads.segment import DenseClasses, MaskHead, PatchLayer, Segmenter
from vitlab.models.model import Model
from vitlab.weights.beside import HeadFile, load_beside


def load_segmenter(run: str | Path) -> Segmenter:
    """Load the segmenter of a run of `--task segment`.

    Raises:
        WeightsError: none is there, or it is damaged or of another model.
    """
    model, known, tensors = load_beside(run, MASKS)
    if not known.queries:
        return Segmenter(model, PatchLayer(known, **tensors))
    head = MaskHead(model.config, known)
    head.load_state_dict(tensors)
    return Segmenter(model, head)


def _expect_tensors(model: Model, about: DenseClasses) -> dict[str, Tensor]:
    """Return the tensors of a head, without memory."""
    if not about.classes:
        raise OptionError("it has no classes")
    config = model.config
    count = len(about.classes)
    with torch.device("meta"):
        if about.queries:
            check_queries(config, about.queries, about.blocks, "this head")
            return MaskHead(config, about).state_dict()
        last = model.last_layer
        if not all(-last - 1 <= layer <= last for layer in about.layers):
            raise OptionError(f"{config.name} has the layers 0 to {last}, but not all it asks for")
        width = config.width if isinstance(config, ViTConfig) else config.features
        features = width * len(about.layers)
        return {"weight": torch.empty(count, features), "bias": torch.empty(count)}


MASKS = HeadFile(SEGMENT, DenseClasses, _expect_tensors, "vitlab probe DATA --task segment")


def read_layer(run: str | Path) -> tuple[DenseClasses, dict[str, Tensor]]:
    """Return what the segmenter of a run is, and its linear layer: weight and bias.

    Raises:
        WeightsError: none is there, or it is damaged, or it has queries in place of the layer.
    """
    _, known, tensors = load_beside(run, MASKS)
    if known.queries:
        raise WeightsError(f"{run} has queries, no linear layer to start from: name a run of probe")
    return known, tensors
