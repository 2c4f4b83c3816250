"""What a training step computes: multiply-adds, as PyTorch's counter finds them."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitlab.data.learning import OpenedData
from vitlab.device import choose
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.plan import batches_of
from vitlab.training.setup.preparation import first_state, prepare
from vitlab.training.step.trainer import Trainer

IMAGES = 8  # of the step that is counted: every product is in proportion


def step_macs(recipe: Recipe, host: Host | None = None, opened: OpenedData | None = None) -> float:
    """Return the multiply-adds of a training step, per image of the batch.

    Those of matrix products, convolutions and attention, forward and backward, of everything that
    the step computes: decoder, momentum teacher, tokenizer and further crops too, and nothing for
    gradients of frozen weights. They are counted as a step of a few images is taken.

    Args:
        recipe: names its data, and the weights that it starts from
        host: where to take the step
        opened: where the data may have been opened before

    Raises:
        UserError: as `vitlab.train`.
    """
    host = host or Host()
    few = min(recipe.batch, IMAGES)
    recipe = recipe.changed(steps=1, batch=few, micro_batch=0)
    with TemporaryDirectory(prefix="vitlab-cost-") as place:
        folder = RunFolder(Path(place) / "run", silent=True)  # which is never begun
        task = prepare(recipe, host, folder, resume=False, world=ALONE, opened=opened)
    state = first_state(task, choose(host.device), ALONE)
    trainer = Trainer(state.model, recipe, objective=state.task or task.objective)
    images = task.opened.cached(task.splits.train, task.config.channels)
    batch = batches_of(recipe, images, task.config, ALONE)[0]
    with FlopCounterMode(display=False, custom_mapping=FURTHER) as counter:
        trainer.gradient(counted(batch, ALONE), seed=0)
    return counter.get_total_flops() / 2 / few


def _attention(queries: torch.Size, keys: torch.Size, *_: Any, **__: Any) -> int:
    """Return the operations of attention: logits, then the mixture of values."""
    return 4 * queries.numel() * keys[-2]


def _attention_backward(_: torch.Size, *shapes: Any, **__: Any) -> int:
    """Return those of its gradient, two products for each; logits computed anew do not count."""
    return 2 * _attention(*shapes[:2])


# What the counter does not know, or counts by how a kernel works rather than by what it computes.
FURTHER = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_backward: _attention_backward,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward: _attention_backward,
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward: _attention_backward,
}
