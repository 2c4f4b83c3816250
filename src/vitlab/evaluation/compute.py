"""Compute: the device, precision, engine and workers of a pass over images, in one value.

`Compute.fast` chooses the form of a model that computes many images: the fastest engine, found by
measuring, where that pays.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitlab import device as devices
from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.models.cost import cost
from vitlab.models.fast.accelerate import accelerate, can_accelerate, check_engine, remembered
from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.precision import Engine, Precision, check_precision, fixed
from vitlab.progress import LOG

PACKING = 4e11  # multiply-adds from which packed weights save more time than packing them takes
HALVING = 1e12  # from which comparing bf16 with fp32 takes little of it
MEASURING = {
    "cpu": 1e13,
    "mps": 1e13,
    "cuda": 1e16,
}  # and from which finding the fastest engine does
FEW, SOME = 8, 64  # fewer images than these are not worth the first and the second
BATCH = 16  # images that the engines are timed with, at most
PROBES = 8  # images to compare on


@dataclass(frozen=True)
class Compute:
    """Where and how images are computed.

    Attributes:
        device: auto, cpu, cuda, cuda:N or mps; or a device that was chosen
        precision: fp32, bf16; or auto: bf16 for many images, where the device multiplies it faster
            and probabilities agree with those in fp32
        engine: what computes: auto for the fastest of many images, or one by its name
        workers: processes that decode; None to choose
        sharing: processes of the same job on this machine, which share its cores
        measure: whether `auto` may measure engines; processes that share a job must all choose the
            same, so that they do not
    """

    device: str | torch.device = "auto"
    precision: Precision = "fp32"
    engine: Engine = "auto"
    workers: int | None = None
    sharing: int = 1
    measure: bool = True

    @cached_property
    def where(self) -> torch.device:
        """The device.

        Raises:
            DeviceError: this machine does not have it.
        """
        return devices.choose(self.device) if isinstance(self.device, str) else self.device

    def fast(self, model: Model, source: Images, views: int = 1) -> "FastForm":
        """Return what computes a source's images best.

        The model itself computes little work, and whatever `can_accelerate` refuses. From 4e11
        multiply-adds and 8 images on, it is its packed form, and from 1e13 on (1e16 on
        a GPU, where one candidate has to be compiled), or where it has been measured before, the
        fastest engine for so many images (`vitlab.accelerate`). `auto` is bf16
        from 1e12 multiply-adds and 64 images on, where the device multiplies it faster than fp32,
        and where features and probabilities of 8 images of the source agree with those in fp32; a
        line says so.

        Args:
            model: any; it stays as it is
            source: all images of the work
            views: of each image

        Raises:
            OptionError: another precision or engine.
            PackageError: the engine is not installed.
        """
        check_precision(self.precision)
        check_engine(self.engine)
        precision = self.precision
        engine = self.engine
        count = len(source) * views
        work = cost(model).macs * count
        little = len(source) < FEW or work < PACKING
        if engine == "plain" or (engine == "auto" and little) or not can_accelerate(model):
            return FastForm(model, fixed(precision))
        if engine == "auto":
            timed = work >= MEASURING[self.where.type] or remembered(
                model, self.where, precision, BATCH
            )
            engine = "auto" if self.measure and timed else "packed"
        few = self.engine == "auto" and (work < HALVING or len(source) < SOME)
        if precision == "auto" and few:
            precision = "fp32"
        probe = spread(model, source)
        with devices.forked_random(self.where):  # what compiles and tunes engines may draw
            fast = accelerate(
                model,
                device=str(self.where),
                precision=precision,
                engine=engine,
                batch=BATCH,
                images=count,
                probe=probe if len(probe) else None,
            )
        if fast.engine == "plain":
            return FastForm(model, "fp32")
        if fast.computes == "bf16" and precision == "auto":
            LOG.warning(
                f"computing in bf16: {len(probe)} of the images have the features and "
                "probabilities of fp32 within 5% and 0.02; --precision fp32 (in Python "
                "precision='fp32') computes in fp32"
            )
        return FastForm(fast, "fp32")

    def of(self, form: "FastForm") -> "Compute":
        """Return the same with the precision and engine that a form has."""
        return replace(self, device=self.where, precision=form.autocast, engine="plain")


@contextmanager
def borrowed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """In the block the model is on `device`, in evaluation mode; afterwards it is as before.

    That holds for each sub-module's own mode, and if the block fails.
    """
    home = next(model.parameters()).device
    with evaluating(model):
        try:
            model.to(device)
            yield
        finally:
            model.to(home)


@dataclass(frozen=True)
class FastForm:
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

    @property
    def about(self) -> dict[str, str]:
        """What results say of it: `precision` and `engine`."""
        return {"precision": self.precision, "engine": self.model.engine}


def spread(model: Model, source: Images) -> Tensor:
    """Return images from all over a source, normalized (up to 8, C, H, W); no damaged ones."""
    numbers = np.unique(np.linspace(0, len(source) - 1, PROBES).astype(np.int64))
    batches = EvaluationBatches(source.take(numbers), model.config, PROBES)
    found = batches[0]
    images = normalize(found.images, model.config)
    assert isinstance(images, Tensor)
    return images
