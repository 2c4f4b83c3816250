"""Activations that are computed again for the backward pass, in place of being kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def recomputed(model: nn.Module, on: bool) -> Iterator[None]:
    """Within the context, keep only the input of each encoder block (Chen et al., 2016).

    The backward pass recomputes a block with the same random numbers, so dropout and stochastic
    depth repeat and every gradient has the same bits.

    Args:
        model: any with Vision Transformers inside, such as what a pretext task trains
        on: whether to do so
    """
    lists = [getattr(each, "blocks", None) for each in model.modules()] if on else []
    blocks = [block for each in lists if isinstance(each, nn.ModuleList) for block in each]
    for block in blocks:
        block.forward = _recomputing(block.forward)  # the instance's own hides the class's
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _recomputing(forward: Callable[..., Tensor]) -> Callable[..., Any]:
    def forward_again(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    return forward_again
