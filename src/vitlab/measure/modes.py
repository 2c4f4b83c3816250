"""A model in the form that is measured: as it is, fused, accelerated or compiled."""

import copy
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from vitlab import device as devices
from vitlab.errors import OptionError
from vitlab.measure.allocated import peak_bytes
from vitlab.measure.timing import Pass
from vitlab.models.fast.accelerate import accelerate
from vitlab.models.fast.packed_form import PackedDense
from vitlab.models.fuse import fuse
from vitlab.models.model import Model
from vitlab.precision import Engine

Mode = Literal["eager", "fused", "accelerated", "compiled"]
Precision = Literal["fp32", "bf16", "bf16-pure"]


class Passes:
    """Forward passes in one mode of a model on random images, of any batch size.

    Attributes:
        model: in its form, on its device
        where: its device
        precision: that it computes in: an accelerated ResNet stays in fp32
        compiled: whether each batch size is compiled for itself
        hidden: nothing: weights are there all the time

    Args:
        model: is left as it is
        mode: eager; fused; accelerated, and on a GPU compiled; or fused and compiled
        precision: fp32, bf16 (autocast; of the accelerated mode its weights) or bf16-pure
        where: the device

    Raises:
        OptionError: the accelerated mode in bf16-pure.
    """

    hidden = 0

    def __init__(self, model: Model, mode: Mode, precision: Precision, where: torch.device) -> None:
        self.where, self.mode, self.precision = where, mode, precision
        on_gpu = where.type == "cuda"
        self.compiled = mode == "compiled" or (mode == "accelerated" and on_gpu)
        if mode == "accelerated":
            if precision == "bf16-pure":
                raise OptionError("the accelerated mode has precision fp32 or bf16: choose one")
            engine: Engine = "compiled" if on_gpu else "packed"
            self.model = accelerate(model, device=str(where), precision=precision, engine=engine)
            self.precision = "bf16" if self.model.computes == "bf16" else "fp32"
            return
        self.model = (copy.deepcopy(model) if mode == "eager" else fuse(model)).to(where).eval()
        if precision == "bf16-pure":
            self.model.to(torch.bfloat16)

    def passes(self, batch: int) -> Pass:
        """Return what takes one pass of so many images."""
        images, network = self._images(batch), self.model
        if self.compiled:
            torch.compiler.reset()  # else only the first few sizes would be compiled
        if self.mode == "compiled":
            compiled = torch.compile(network, dynamic=False)
            return lambda: self._pass(compiled, images)
        return lambda: self._pass(network, images)

    def counted(self, batch: int) -> int:
        """Return the most bytes of tensors in a pass on a CPU, which is not compiled."""
        images = self._images(batch)
        packed = [each.packed for each in self.model.modules() if isinstance(each, PackedDense)]
        tensors = [*self.model.parameters(), *self.model.buffers(), *packed, images]
        return peak_bytes(lambda: self._pass(self.model, images), tensors)

    def _images(self, batch: int) -> Tensor:
        config, generator = self.model.config, torch.Generator(self.where).manual_seed(0)
        shape = (batch, config.channels, *config.size)
        images = torch.randn(shape, device=self.where, generator=generator)
        return images.to(torch.bfloat16) if self.precision == "bf16-pure" else images

    def _pass(self, network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        kind = "bf16" if self.precision == "bf16" and self.mode != "accelerated" else "fp32"
        with torch.inference_mode(), devices.autocast(self.where, kind):
            return network(images)
