"""The form of a model that computes many images: its fast form, where that pays."""

import logging
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.sources.protocol import Source, Subset
from vitlab.errors import OptionError
from vitlab.models.cost import cost
from vitlab.models.fast.accelerate import accelerate, agree, answers, multiplies_bf16
from vitlab.models.fast.possible import can_accelerate
from vitlab.models.model import Model

Precision = Literal["auto", "fp32", "bf16"]
PRECISIONS = ("auto", "fp32", "bf16")
PACKING = 4e11  # multiply-adds from which packed weights save more time than packing them takes
HALVING = 1e12  # and from which comparing bf16 with fp32 takes little of it
FEW, SOME = 8, 64  # fewer images than these are not worth the one and the other
PROBES = 8  # images to compare on


@dataclass(frozen=True)
class Form:
    """What computes.

    Attributes:
        model: as it was given, or its fast form
        autocast: the precision for what the model does not decide itself
    """

    model: Model
    autocast: Literal["fp32", "bf16"]

    @property
    def precision(self) -> str:
        """The precision of the products: fp32 or bf16."""
        return "bf16" if self.autocast == "bf16" else self.model.computes


def fast_form(
    model: Model, source: Source, device: torch.device, precision: Precision, views: int = 1
) -> Form:
    """Return what computes a source's images best.

    The model itself computes little work, and whatever `can_accelerate` refuses. From 4e11
    multiply-adds and 8 images on, it is its fast form (`vitlab.accelerate`). `auto` is bf16 from
    1e12 multiply-adds and 64 images on, where the device multiplies it faster than fp32, and where
    features and probabilities of 8 images of the source agree with those in fp32; a line says so.
    The choice depends on the whole source alone: processes that share it choose the same.

    Args:
        model: any; it stays as it is
        source: all images of the work
        device: that computes
        precision: auto, fp32 or bf16
        views: of each image

    Raises:
        OptionError: another precision.
    """
    check_precision(precision)
    asked = fixed(precision)
    if len(source) < FEW or not can_accelerate(model):
        return Form(model, asked)
    work = cost(model).macs * len(source) * views
    if work < PACKING:
        return Form(model, asked)
    fast = accelerate(model, device=str(device), precision=asked)
    few = work < HALVING or len(source) < SOME
    if precision != "auto" or few or not multiplies_bf16(device):
        return Form(fast, "fp32")
    images = spread(model, source).to(device)
    if not len(images):
        return Form(fast, "fp32")
    half = accelerate(model, device=str(device), precision="bf16")
    if half.computes != "bf16":  # it has no blocks, as a ResNet
        return Form(fast, "fp32")
    wanted, got = answers(fast, images), answers(half, images)
    if not agree(got, wanted):
        return Form(fast, "fp32")
    away = (got[1] - wanted[1]).abs().max().item()
    logging.getLogger("vitlab").warning(
        f"computing in bf16: on {len(images)} of the images no probability is further than "
        f"{away:.1g} from fp32; --precision fp32 (in Python precision='fp32') computes in fp32"
    )
    return Form(half, "fp32")


def check_precision(precision: str) -> None:
    """Refuse any but auto, fp32 and bf16.

    Raises:
        OptionError: it is another one.
    """
    if precision not in PRECISIONS:
        raise OptionError(f"precision must be auto, fp32 or bf16, not {precision!r}")


def fixed(precision: str) -> Literal["fp32", "bf16"]:
    """Return the precision of what does not choose one itself: auto is fp32."""
    return "bf16" if precision == "bf16" else "fp32"


def spread(model: Model, source: Source) -> Tensor:
    """Return images from all over a source, normalized (up to 8, C, H, W); no damaged ones."""
    numbers = np.unique(np.linspace(0, len(source) - 1, PROBES).astype(np.int64))
    batches = EvaluationBatches(Subset(source, numbers), model.config, PROBES)
    found = batches[0]
    images = normalize(found.images, model.config.mean, model.config.std)
    assert isinstance(images, Tensor)
    return images
