"""One model on several processes: a copy in each (DDP), or a slice of it in each (FSDP2)."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vitlab.distributed.sync_norm import uncounted
from vitlab.distributed.world import World
from vitlab.models.create import assemble
from vitlab.models.model import Model
from vitlab.objectives.pretext_task import Learner
from vitlab.optim.sliced import full
from vitlab.tuning.lora import is_injected, merged


def shard(model: Model, world: World) -> None:
    """Leave each process a slice of every weight; blocks are assembled as they compute.

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
    """Return whether a model went through `shard`."""
    return hasattr(model, "unshard")


def replicated(model: nn.Module, world: World) -> nn.Module:
    """Return the module to call in training: itself, or one that averages gradients."""
    if world.size == 1 or is_sharded(model):
        return model
    device = next(model.parameters()).device
    warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")  # see below
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        # a pretext task may leave parts of a model out: its head, or what only labels reach; where
        # it does not, nothing is lost that a user should be warned of
        find_unused_parameters=isinstance(model, Learner),
    )


def must_settle(network: nn.Module, world: World) -> bool:
    """Return whether a first gradient would be summed in another order than all later ones.

    DDP sorts gradients into other buckets after its first backward pass in a process, and with
    more than two processes the order of a sum shows in its last bits. On GPUs no bits are promised.
    """
    if not isinstance(network, DistributedDataParallel) or world.size < 3:
        return False
    return next(network.parameters()).device.type == "cpu"


@contextmanager
def one_pass(network: nn.Module, *, last: bool, counts: bool) -> Iterator[None]:
    """Wrap one forward and backward pass; gradients are exchanged in the last one of a step.

    Args:
        network: from `replicated`
        last: whether it completes the accumulated gradient
        counts: whether its images are real ones, which batch norms count
    """
    with ExitStack() as stack:
        if isinstance(network, DistributedDataParallel) and not last:
            stack.enter_context(network.no_sync())
        if not counts:
            stack.enter_context(uncounted(network))
        yield


def plain(model: Model) -> Model:
    """Return the whole model in every process, with LoRA's products in its weights.

    A model that is neither sharded nor has such products is returned itself.
    """
    if is_injected(model):
        return merged(model).requires_grad_(False)
    if not is_sharded(model):
        return model
    copy = assemble(model.config, {name: full(w) for name, w in model.state_dict().items()})
    copy.train(model.training)
    copy.provenance, copy.seen = model.provenance, model.seen
    return copy.requires_grad_(False)
