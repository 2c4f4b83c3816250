"""What a class score draws on, followed through the attention of all layers."""

from contextlib import ExitStack

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.inspect.explaining.class_scores import scored, watched
from vitlab.inspect.passes import transformer
from vitlab.models.encoder.attention import Attention
from vitlab.models.model import Model


def relevance(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Compute how much each patch speaks for a class, through the attention of all layers.

    Each layer adds what its attention carries on: the mean over heads of the positive part of
    attention times its gradient of the class score; parallel branches add theirs side by side.
    Source: Chefer et al., Generic Attention-Model Explainability, 2021, equations 5 and 6.

    Args:
        model: a Vision Transformer with a classifier; used in evaluation mode, and afterwards as
            before
        images: normalized, (B, channels, H, W)
        classes: of each image, (B,)

    Returns:
        (B, rows, columns), not negative.

    Raises:
        OptionError: a ResNet, class-attention layers, talking heads, or no such class.
    """
    seer = transformer(model)
    config = seer.config
    if config.class_blocks or config.talking_heads:
        raise OptionError(
            f"relevance does not follow class_blocks or talking_heads, which {config.name} has: "
            "use vitlab.inspect.occlusion"
        )
    grid = config.grid_of((images.shape[-2], images.shape[-1]))
    blocks = [[branch.body for branch in block.attention] for block in seer.blocks]
    with scored(model, images, classes) as run, ExitStack() as stack:
        passes = [[_Pass(body, stack) for body in bodies] for bodies in blocks]
        run()
    with torch.inference_mode():
        pooled = seer.head.shares(seer.encode(images)).float()  # (B, N)
        flow = torch.eye(pooled.shape[1], device=images.device)
        for branches in passes:
            flow = flow + torch.stack([each.carried(grid) for each in branches]).sum(0) @ flow
        rows = (pooled[:, None] @ flow)[:, 0]
    return rows[:, config.prefix :].unflatten(1, grid)


class _Pass:
    """One attention during a pass: what enters, the values, and the gradient of what is gathered.

    The gradient of the attention itself follows from these: of each query's sum of values, it is
    the product of the sum's gradient and the values.
    """

    def __init__(self, body: Attention, stack: ExitStack) -> None:
        self.body = body
        self.entering = stack.enter_context(watched(body, inputs=True))
        self.projected = stack.enter_context(watched(body.qkv))
        self.gathered = stack.enter_context(watched(body.norm, inputs=True, gradient=True))

    def carried(self, grid: tuple[int, int]) -> Tensor:
        """Return the mean over heads of attention times gradient, where positive: (B, N, N)."""
        (tokens, layout), (qkv,), (gathered,) = (
            self.entering[0],
            self.projected[0],
            self.gathered[0],
        )
        body, reach = self.body, self.body.reach
        weights = body.weights(tokens, layout)
        _, _, values = reach.fold(qkv, grid).chunk(3, -1)
        sums = reach.fold(gathered.grad, grid)
        values, sums = (
            each.unflatten(-1, (body.heads, -1)).transpose(1, 2) for each in (values, sums)
        )
        gradient = reach.spread(sums @ values.transpose(-2, -1), grid)  # (B, h, N, N)
        return (weights * gradient).relu().mean(1).float()
