"""One model on many processes: whole in each (DDP), or in shards (FSDP2).

PyTorch's sharded tensors take most of a second to import, so that is done where they are made;
elsewhere a tensor or model is known by the methods that only the sharded ones have.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitlab.distributed.sync_norm import left_out
from vitlab.distributed.world import World
from vitlab.models.create import Model, build


def shard(model: Model, world: World) -> None:
    """Leave each process a slice of every weight; blocks are put together as they compute.

    Zhao et al., PyTorch FSDP, 2023, in its second form (`torch.distributed.fsdp.fully_shard`):
    gradients and the optimizer's moments are slices too.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (world.size,))
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` has been at work."""
    return hasattr(model, "unshard")


def is_sliced(tensor: Tensor) -> bool:
    """Whether this process holds a slice of a tensor alone."""
    return hasattr(tensor, "full_tensor")


def replicated(model: Model, world: World) -> nn.Module:
    """What is called in training: the model itself, or one whose gradients are averaged."""
    if world.size == 1 or is_sharded(model):
        return model
    device = next(model.parameters()).device
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )


@contextmanager
def one_pass(net: nn.Module, *, last: bool, counts: bool) -> Iterator[None]:
    """Around one forward and backward pass: gradients travel in the last one of a step.

    Args:
        net: from `replicated`
        last: whether the accumulated gradient is complete with it
        counts: whether its images are real ones, for the batch norms
    """
    with ExitStack() as stack:
        if isinstance(net, DistributedDataParallel) and not last:
            stack.enter_context(net.no_sync())
        if not counts:
            stack.enter_context(left_out(net))
        yield


def plain(model: Model) -> Model:
    """The whole model in every process; one that is not sharded is returned as it is."""
    if not is_sharded(model):
        return model
    device = next(model.parameters()).device
    with torch.device("meta"):
        copy = build(model.config)
    copy.to_empty(device=device)
    copy.load_state_dict({name: full(tensor) for name, tensor in model.state_dict().items()})
    copy.provenance = model.provenance
    return copy.requires_grad_(False)


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each process may hold a slice."""
    return cast(Any, tensor).full_tensor() if is_sliced(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    return cast(Any, tensor).to_local() if is_sliced(tensor) else tensor


def placed(whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor as another of its shape is held: in slices, or whole."""
    if not is_sliced(like) or whole.shape != like.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    layout, there = cast(Any, like), whole.to(like.device, like.dtype)
    return distribute_tensor(there, layout.device_mesh, layout.placements, src_data_rank=None)
