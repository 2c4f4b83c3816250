"""A fused block whose products are packed, or in bf16."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitlab.models.encoder.attention import Attention
from vitlab.models.encoder.block import MLP
from vitlab.models.encoder.layout import Layout
from vitlab.models.fast.dense import Dense, Gelu
from vitlab.models.fuse import FusedBlock

Make = Callable[[nn.Linear], Dense]


class FastBlock(nn.Module):
    """What `FusedBlock` computes, with GELU and residual sums inside the products before them.

    Tokens between blocks are in the precision of the products.

    Args:
        block: it is taken over
        make: the form of its linear layers
        dtype: of its tokens
        last: return tokens in fp32, for what follows the blocks
    """

    def __init__(self, block: FusedBlock, make: Make, dtype: torch.dtype, last: bool) -> None:
        super().__init__()
        block.to(dtype)
        self.unit = block.unit
        self.attention: Attention = block.attention
        self.mlp: MLP = block.mlp
        self.dtype, self.leaving = dtype, torch.float32 if last else dtype
        self.gelu = _gelu_of(self.mlp)
        replace_layers(self, make)

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Transform tokens: (B, N, D) -> (B, N, D), or (B, layout.leading, D)."""
        attention, mlp = self.attention, self.mlp
        tokens = tokens.to(self.dtype).contiguous()
        gathered = attention.gathered(self.unit(tokens), layout)
        if layout and layout.leading is not None:
            tokens = tokens[:, : layout.leading].contiguous()
        tokens = _dense(attention.project).onto(gathered, tokens)
        hidden = self.unit(tokens)
        if self.gelu is None:
            hidden = mlp.hidden(hidden)
        else:
            hidden = mlp.norm(_dense(mlp.expand).then_gelu(hidden, self.gelu))
        return _dense(mlp.contract).onto(hidden, tokens).to(self.leaving)

    def attention_weights(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Return each head's attention at the block's input: (B, branches * heads, N, N)."""
        weights = self.attention.weights(self.unit(tokens.to(self.dtype)), layout)
        return weights.to(torch.float32)


def replace_layers(module: nn.Module, make: Make) -> None:
    """Put another form of each linear layer into its place."""
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.Linear):
            module.set_submodule(name, make(layer))


def _gelu_of(mlp: MLP) -> Gelu | None:
    """Return the GELU that can be part of the product before it; None if there is none."""
    if mlp.gated or not isinstance(mlp.act, nn.GELU):
        return None
    return "tanh" if mlp.act.approximate == "tanh" else "none"


def _dense(layer: nn.Module) -> Dense:
    assert isinstance(layer, Dense)
    return layer
