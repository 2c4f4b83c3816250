"""Giving a step up halfway, with nothing learned from it: a large step may take minutes on a CPU.

Python's signal handlers and clocks cannot interrupt a backward pass, which is one call. So hooks
look after each layer, forward and backward, whether the step is still wanted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.training.step.precision import Engine


class HalfwayError(Exception):
    """A step was given up; weights, moments, average and statistics are as they were before it."""


@contextmanager
def given_up_when(unwanted: Callable[[], bool], engine: Engine) -> Iterator[None]:
    """Within the block, give the step up between two layers once it is unwanted.

    A compiled network has no layers to look between: its steps are finished.

    Args:
        unwanted: asked after each layer
        engine: computes the step

    Raises:
        HalfwayError: it was given up.
    """
    if engine.compiled:
        yield
        return

    def look(*_: Any) -> None:
        if unwanted():
            raise HalfwayError

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        look()
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(look)

    network = engine.plain
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    layers = [m for m in network.modules() if next(m.parameters(recurse=False), None) is not None]
    hooks = [layer.register_forward_hook(after) for layer in layers]
    try:
        yield
    except HalfwayError:
        with torch.no_grad():
            for name, buffer in network.named_buffers():  # statistics of batch norms
                buffer.copy_(before[name])
        raise
    finally:
        for hook in hooks:
            hook.remove()
