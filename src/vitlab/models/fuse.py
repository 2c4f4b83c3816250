"""The exact inference form of a model: everything constant is folded into the weights."""

import copy
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vitlab.models.block import Block, Branch
from vitlab.models.position import Inner
from vitlab.models.resnets.body import StdConv
from vitlab.models.stem import ConvStem
from vitlab.models.wide import (
    Wide,
    wide_attention,
    wide_attention_weights,
    wide_mlp,
    widen_attention,
    widen_mlp,
)

Model = TypeVar("Model", bound=nn.Module)


class FusedBlock(nn.Module):
    """A block with its norms' scale and shift and its LayerScale in the weights.

    One product makes the queries, keys and values of all branches, one sums their outputs; the
    MLPs likewise.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.layout = block.layout()
        self.norms = block.head_norms()
        self._keep("attention", widen_attention(cast(list[Branch[Any]], list(block.attention))))
        self._keep("mlp", widen_mlp(cast(list[Branch[Any]], list(block.mlp))))

    def _keep(self, name: str, wide: Wide) -> None:
        for part, tensor in wide._asdict().items():
            self.register_buffer(f"{name}_{part}", tensor)

    def _wide(self, name: str) -> Wide:
        return Wide(*(getattr(self, f"{name}_{part}") for part in Wide._fields))

    def forward(self, tokens: Tensor, inner: Inner | None = None) -> Tensor:
        """Tokens in, tokens out: (B, N, D)."""
        wide = self._wide("attention")
        tokens = tokens + wide_attention(tokens, wide, self.norms, inner, self.layout)
        return tokens + wide_mlp(tokens, self._wide("mlp"), self.layout)

    def attention_weights(self, tokens: Tensor, inner: Inner | None = None) -> Tensor:
        """What each head attends to at the block's input: (B, branches * heads, N, N)."""
        wide = self._wide("attention")
        return wide_attention_weights(tokens, wide, self.norms, inner, self.layout)


@torch.no_grad()
def fuse(model: Model) -> Model:
    """A copy of a model for inference, with the same methods and, to rounding, the same outputs.

    Norms and LayerScale are folded into the dense layers behind and before them, parallel branches
    become one wide computation (Three things, section 3), BatchNorm goes into the stem's
    convolutions with its running statistics, and standardized convolutions keep their standardized
    kernels. The copy cannot be trained or saved.
    """
    fused = copy.deepcopy(model).eval().requires_grad_(False)
    for name, module in list(fused.named_modules()):
        if isinstance(module, Block):
            fused.set_submodule(name, FusedBlock(module))
        elif isinstance(module, ConvStem):
            module.layers = _without_batch_norm(module.layers)
        elif isinstance(module, StdConv):
            module.bake()
    return fused.eval()


def _without_batch_norm(layers: nn.Sequential) -> nn.Sequential:
    kept: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, nn.BatchNorm2d):
            kept[-1] = fuse_conv_bn_eval(cast(nn.Conv2d, kept[-1]), layer)
        else:
            kept.append(layer)
    return nn.Sequential(*kept)
