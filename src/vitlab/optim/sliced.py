"""Tensors of which each process may hold only a slice (FSDP2's `DTensor`).

PyTorch's module for them takes most of a second to import, so they are recognized by the methods
that only they have.
"""

from typing import Any, cast

from torch import Tensor


def is_sliced(tensor: Tensor) -> bool:
    """Return whether this process holds only a slice of a tensor."""
    return hasattr(tensor, "full_tensor")


def full(tensor: Tensor) -> Tensor:
    """Return the whole tensor; a collective call where it is sliced."""
    return cast(Any, tensor).full_tensor() if is_sliced(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor."""
    return cast(Any, tensor).to_local() if is_sliced(tensor) else tensor


def placed(whole: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor in the form of `like`: sliced the same way, or as it is."""
    if not is_sliced(like) or whole.shape != like.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    layout, moved = cast(Any, like), whole.to(like.device, like.dtype)
    return distribute_tensor(moved, layout.device_mesh, layout.placements, src_data_rank=None)
