"""What a class score draws on, followed through the attention of all layers."""

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.inspect.explaining.class_scores import asked, scored, watched
from vitlab.inspect.passes import Grid, together, transformer
from vitlab.models.encoder.attention import Attention, across_heads
from vitlab.models.encoder.class_attention import ClassAttention
from vitlab.models.head import AttentionPool
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer


def relevance(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Compute how much each patch speaks for a class, through the attention of all layers.

    Each layer adds what its attention carries on: the mean over heads of the positive part of
    attention times its gradient of the class score; parallel branches add theirs side by side.
    Source: Chefer et al., Generic Attention-Model Explainability, 2021, equations 5 and 6.

    Class-attention layers carry to the class token alone. Talking heads count with the weights
    that they mix after the softmax, which are those of the values. The rows that are read are those
    that the model pools, as of `rollout`; attention pooling is a last layer of its own, whose
    queries start from nothing (equation 10, without its normalization). The score of a class is
    its logit; of several queries, the mean.

    Args:
        model: a Vision Transformer with a classifier; used in evaluation mode, and afterwards as
            before
        images: normalized, (B, channels, H, W)
        classes: of each image, (B,)

    Returns:
        (B, rows, columns), not negative.

    Raises:
        OptionError: a ResNet, images that do not fit, or no such class.
    """
    seer = transformer(model)
    images, classes = asked(model, images, classes)
    few = together(model, images)
    parts = zip(images.split(few), classes.split(few), strict=True)
    return torch.cat([_relevance(seer, *part) for part in parts])


def _relevance(model: VisionTransformer, images: Tensor, classes: Tensor) -> Tensor:
    """Return the relevance of a few images' patches, (B, rows, columns)."""
    config, head = model.config, model.head
    grid = config.grid_of((images.shape[-2], images.shape[-1]))
    tokens = config.prefix + grid[0] * grid[1]
    with ExitStack() as stack:
        layers = [_passes(block, stack) for block in model.blocks]
        if model.class_layers is not None:
            layers += [_passes(block, stack) for block in model.class_layers.blocks]
        pool = None if head.attend is None else _Pass(head.attend, stack)
        stack.enter_context(scored(model, images, classes))()
    with torch.no_grad():
        flow = torch.eye(tokens, device=images.device)
        for branches in layers:
            carried = [each.carried(grid, config.heads, tokens) for each in branches]
            flow = flow + torch.stack(carried).sum(0) @ flow
        if pool is None:
            blank = torch.empty(len(images), tokens, 0, device=images.device)
            pooled = head.shares(blank)  # (B, N)
        else:
            pooled = pool.carried(grid, pool.body.heads, tokens).sum(1)  # over queries
        rows = (pooled[:, None] @ flow)[:, 0]
        return rows[:, config.prefix :].unflatten(1, grid)


def _passes(block: nn.Module, stack: ExitStack) -> list["_Pass"]:
    """Watch every attention of a block, fused or not."""
    bodies = (part for part in block.modules() if isinstance(part, Attention | ClassAttention))
    return [_Pass(body, stack) for body in bodies]


class _Pass:
    """One attention during a pass: what enters, the values, and the gradient of what is gathered.

    The gradient of the attention itself follows from these: of each query's sum of values, it is
    the product of the sum's gradient and the values.
    """

    def __init__(self, body: Attention | ClassAttention | AttentionPool, stack: ExitStack) -> None:
        self.body = body
        if isinstance(body, Attention):
            projection, after = body.qkv, body.norm
        else:
            projection, after = body.kv, body.project
        self.entering = stack.enter_context(watched(body, inputs=True))
        self.projected = stack.enter_context(watched(projection))
        self.gathered = stack.enter_context(watched(after, inputs=True, gradient=True))

    def carried(self, grid: Grid, heads: int, tokens: int) -> Tensor:
        """Return the mean over heads of attention times gradient, where positive: (B, N, N).

        Of attention pooling it is (B, queries, N).

        Args:
            grid: of the patches
            heads: of a branch; those of several are side by side in a fused model
            tokens: N, with those that take no part here
        """
        product = self._product(grid)
        absent = tokens - product.shape[-1]
        each = product.relu().unflatten(1, (-1, heads)).mean(2).sum(1).float()
        if isinstance(self.body, Attention):
            return F.pad(each, (absent, 0, absent, 0))
        below = tokens - 1 if isinstance(self.body, ClassAttention) else 0
        return F.pad(each, (absent, 0, 0, below))

    def _product(self, grid: Grid) -> Tensor:
        """Return attention times its gradient, (B, h, queries, keys)."""
        body, (projected,), gathered = self.body, self.projected[0], self.gathered[0][0]
        if not isinstance(body, Attention):
            sums, values = gathered.grad, projected.chunk(2, -1)[1]
            return body.weights(self.entering[0][0]) * _slopes(sums, values, body.heads)
        weights, pattern = body.weights(*self.entering[0]), body.pattern
        if body.talking is not None:  # places out of reach get a bias here, but have no gradient
            weights = across_heads(body.talking.after, weights)
        sums, values = (pattern.fold(each, grid) for each in (gathered.grad, projected))
        return weights * pattern.spread(_slopes(sums, values.chunk(3, -1)[2], body.heads), grid)


def _slopes(sums: Tensor, values: Tensor, heads: int) -> Tensor:
    """Return the gradient of attention: (B, q, D) and (B, N, D) -> (B, h, q, N)."""
    sums, values = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (sums, values))
    return sums @ values.transpose(-2, -1)
