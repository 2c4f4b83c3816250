"""Evidence for a class: relevance, Grad-CAM (one pass and its gradients)."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.inspect.look import Grid, entering, together, transformer
from vitlab.models.encoder.attention import Attention
from vitlab.models.encoder.block import Block
from vitlab.models.head import AttentionPool
from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.vit import VisionTransformer

FEW = 16  # images whose every layer is kept for the gradients


def relevance(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Compute how much each patch speaks for a class, through the attention of all layers.

    Each layer adds what its attention carries on: the mean over heads of the positive part of
    attention times its gradient of the class score; parallel branches add theirs side by side.
    Source: Chefer et al., Generic Attention-Model Explainability, 2021, equations 5 and 6.

    The rows that are read are those
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
    images, classes = asked(transformer(model), images, classes)
    few = together(model, images)
    parts = zip(images.split(few), classes.split(few), strict=True)
    return torch.cat([Gradients(model, *part).relevance() for part in parts])


def gradcam(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Compute where the features are that speak for a class.

    The channels of the patches that enter the last layer's attention, after its norm (of a ResNet:
    of the map that leaves the last stage), are summed, each weighted by the mean gradient of the
    class score, and what is negative is cut off. Source: Selvaraju et al., Grad-CAM, 2017,
    equations 1 and 2.

    The channels of parallel branches, each with a norm of its own, stand side by side. Where norms
    come after attention (norm_order=after) they are those of the block's input, on which the
    residual path draws too. The score of a class is its logit; of several queries, the mean.

    Args:
        model: any with a classifier; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)
        classes: of each image, (B,)

    Returns:
        (B, rows, columns), not negative. A model that pools the class token alone passes gradients
        of patches on through the last attention only.

    Raises:
        OptionError: a fused model, images that do not fit, or no such class.
    """
    images, classes = asked(model, images, classes)
    parts = zip(images.split(FEW), classes.split(FEW), strict=True)
    return torch.cat([Gradients(model, *part).gradcam() for part in parts])


class Gradients:
    """One pass of a few images, and the gradients of a class score: relevance and Grad-CAM.

    The model is in evaluation mode during the pass, none of its weights collects gradients, and
    afterwards each is as it was.

    Args:
        model: any with a classifier
        images: normalized, (B, channels, H, W)
        classes: of each image, (B,)

    Raises:
        OptionError: images that do not fit, no classifier, or no such class.
    """

    def __init__(self, model: Model, images: Tensor, classes: Tensor) -> None:
        self.model = model
        self.images, labels = asked(model, images, classes)
        with ExitStack() as stack, evaluating(model):
            self._watch(stack)
            with torch.inference_mode(False), torch.enable_grad():
                pixels = self.images.detach().clone().requires_grad_()
                scores_of(model(pixels), labels.clone()).sum().backward(inputs=[pixels])

    def _watch(self, stack: ExitStack) -> None:
        """Keep what enters and leaves every attention, fused or not, and what Grad-CAM weighs."""
        self.layers: list[list[_Pass]] = []
        self.pool: _Pass | None = None
        self.weighed: list[list[Any]] = []
        model = self.model
        if isinstance(model, ResNet):
            self.weighed = [_kept(model.body.stages[-1], stack, gradient=True)]
        if not isinstance(model, VisionTransformer):
            return
        for block in model.blocks:  # fused or not
            bodies = (part for part in block.modules() if isinstance(part, Attention))
            self.layers.append([_Pass(body, stack) for body in bodies])
        if model.head.attend is not None:
            self.pool = _Pass(model.head.attend, stack)
        last = model.blocks[-1]
        for each in last.attention if isinstance(last, Block) else ():
            self.weighed.append(_kept(each.body, stack, inputs=True, gradient=True))

    @torch.no_grad()
    def relevance(self) -> Tensor:
        """Return the relevance of each patch, (B, rows, columns).

        Raises:
            OptionError: a ResNet.
        """
        model, images = transformer(self.model), self.images
        config, grid = model.config, model.config.grid_of(images.shape[-2:])
        tokens = config.prefix + grid[0] * grid[1]
        flow = torch.eye(tokens, device=images.device)
        for branches in self.layers:
            carried = [each.carried(grid, config.heads, tokens) for each in branches]
            flow = flow + torch.stack(carried).sum(0) @ flow
        if self.pool is None:
            blank = torch.empty(len(images), tokens, 0, device=images.device)
            pooled = model.head.shares(blank)  # (B, N)
        else:
            pooled = self.pool.carried(grid, self.pool.body.heads, tokens).sum(1)  # over queries
        rows = (pooled[:, None] @ flow)[:, 0]
        return rows[:, config.prefix :].unflatten(1, grid)

    @torch.no_grad()
    def gradcam(self) -> Tensor:
        """Return the class activation map, (B, rows, columns).

        Raises:
            OptionError: a fused model.
        """
        if not self.weighed:
            raise OptionError(
                f"Grad-CAM weighs what the last norm returns, which fusing "
                f"{self.model.config.name} has folded away: use the model itself"
            )
        # Branches whose norms come after attention share one input
        entered = {id(each): each for each, *_ in self.weighed}.values()
        values = torch.cat([self._as_map(each) for each in entered], 1)
        slopes = torch.cat([self._as_map(each.grad) for each in entered], 1)
        return (slopes.mean((2, 3), keepdim=True) * values).sum(1).relu().float()

    def _as_map(self, values: Tensor) -> Tensor:
        """Return values as maps, (B, D, rows, columns): of patches, (B, N, D), or of a ResNet."""
        if isinstance(self.model, ResNet):
            return values
        rows, columns = transformer(self.model).config.grid_of(self.images.shape[-2:])
        return values[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))


def _kept(
    module: nn.Module, stack: ExitStack, *, inputs: bool = False, gradient: bool = False
) -> list[Any]:
    """Return a list for what a module returns during a pass, or is called with; with gradients."""
    found: list[Any] = []

    def keep(_: nn.Module, given: Sequence[Any], *returned: Any) -> None:
        found[:] = returned or given
        if gradient:
            found[0].retain_grad()

    hook: Any = module.register_forward_pre_hook if inputs else module.register_forward_hook
    stack.callback(hook(keep).remove)
    return found


class _Pass:
    """One attention during a pass: what enters, the values, and the gradient of what is gathered.

    The gradient of the attention itself follows from these: of each query's sum of values, it is
    the product of the sum's gradient and the values.
    """

    def __init__(self, body: Attention | AttentionPool, stack: ExitStack) -> None:
        self.body = body
        pair = (body.qkv, body.norm) if isinstance(body, Attention) else (body.kv, body.project)
        projection, after = pair
        self.entering = _kept(body, stack, inputs=True)
        self.projected = _kept(projection, stack)
        self.gathered = _kept(after, stack, inputs=True, gradient=True)

    def carried(self, grid: Grid, heads: int, tokens: int) -> Tensor:
        """Return the mean over heads of attention times gradient, where positive: (B, N, N).

        Of attention pooling it is (B, queries, N).

        Args:
            grid: of the patches
            heads: of a branch; those of several are side by side in a fused model
            tokens: N, with those before the patches, which a pool may leave out
        """
        product = self._product(grid)
        each = product.relu().unflatten(1, (-1, heads)).mean(2).sum(1).float()
        return F.pad(each, (tokens - each.shape[-1], 0))

    def _product(self, grid: Grid) -> Tensor:
        """Return attention times its gradient, (B, h, queries, keys)."""
        body, (projected,), sums = self.body, self.projected, self.gathered[0].grad
        weights = body.weights(*self.entering)
        if not isinstance(body, Attention):
            return weights * _slopes(sums, projected.chunk(2, -1)[1], body.heads)
        sums, values = (body.fold(each, grid) for each in (sums, projected))
        return weights * body.spread(_slopes(sums, values.chunk(3, -1)[2], body.heads), grid)


def _slopes(sums: Tensor, values: Tensor, heads: int) -> Tensor:
    """Return the gradient of attention: (B, q, D) and (B, N, D) -> (B, h, q, N)."""
    sums, values = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (sums, values))
    return sums @ values.transpose(-2, -1)


def scores_of(values: Tensor, classes: Tensor) -> Tensor:
    """Return each image's value of its class: (B, classes) -> (B,).

    Of (B, queries, classes) it is the mean over the queries of attention pooling.
    """
    each = values.reshape(len(values), -1, values.shape[-1]).mean(1)
    return each.gather(-1, classes[:, None])[:, 0]


def asked(model: Model, images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return images and the class of each, as the model takes them.

    Raises:
        OptionError: images that do not fit, no classifier, or anything but a class for each image.
    """
    images, config = entering(model, images), model.config
    if not config.classes:
        raise OptionError(f"{config.name} has no classifier, and so no class to explain")
    each = (len(images),)
    if not isinstance(classes, Tensor) or (classes.shape, classes.dtype) != (each, torch.int64):
        raise OptionError(f"classes must be an int64 tensor, one per image: {each}")
    if not 0 <= int(classes.min()) <= int(classes.max()) < config.classes:
        raise OptionError(f"classes must be from 0 to {config.classes - 1}")
    return images, classes.to(images.device)
