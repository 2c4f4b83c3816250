"""The encoder's block: residual branches of attention, then of MLPs."""

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from vitlab.models.config import ViTConfig
from vitlab.models.encoder.attention import Attention
from vitlab.models.encoder.layout import Layout
from vitlab.models.encoder.reach import Axis
from vitlab.models.encoder.stochastic_depth import draw_kept
from vitlab.models.layers import NORMS, dense_macs, modules, norm_of, params_of, reset_norm
from vitlab.models.model import Part


class Block(nn.Module):
    """Attention, then MLP, each with an identity around it (ViT paper, equations 2 and 3).

    With more than one branch, all branches of a kind see the same tokens, and the sum of their
    outputs is added (Three things, equation 2).
    """

    def __init__(self, config: ViTConfig, axis: Axis = None, drop_path: float = 0.0) -> None:
        super().__init__()
        branches = range(config.branches)
        self.attention: Sequence[Branch[Attention]] = modules(
            Branch(config, Attention(config, axis), drop_path) for _ in branches
        )
        self.mlp: Sequence[Branch[MLP]] = modules(
            Branch(config, MLP(config), drop_path) for _ in branches
        )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights of each branch in turn."""
        for attention in self.attention:
            attention.reset_parameters(generator)
        for mlp in self.mlp:
            mlp.reset_parameters(generator)

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Transform tokens: (B, N, D) -> (B, N, D), or (B, layout.leading, D).

        Args:
            tokens: (B, N, D)
            layout: how they lie; None: as the configuration's, without positions within attention
        """
        attended = total([branch(tokens, layout) for branch in self.attention])
        tokens = (tokens[:, : layout.leading] if layout else tokens) + attended
        return tokens + total([branch(tokens, layout) for branch in self.mlp])

    def attention_weights(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Return each head's attention at the block's input: (B, branches * heads, N, N)."""
        weights = [each.body.weights(each.entering(tokens), layout) for each in self.attention]
        return torch.cat(weights, dim=1)

    def norms(self) -> list[nn.Module]:
        """List the norms of branches, and those within attention and MLPs where there are any."""
        attention = [norm for each in self.attention for norm in (each.norm, each.body.norm)]
        return attention + [norm for each in self.mlp for norm in (each.norm, each.body.norm)]

    def macs(self, tokens: int) -> int:
        """Count multiply-adds but those of norms and positions."""
        branches = zip(self.attention, self.mlp, strict=True)
        return sum(a.body.macs(tokens) + m.body.macs(tokens) for a, m in branches)


def total(added: list[Tensor]) -> Tensor:
    """Sum the outputs of parallel branches."""
    return added[0] if len(added) == 1 else torch.stack(added).sum(0)


class MLP(nn.Module):
    """Two dense layers with a GELU between (ViT paper, equation 3): (B, N, D) -> (B, N, D).

    As SwiGLU (Shazeer, 2020) the first is twice as wide, and one half gates the other.
    """

    role: ClassVar[str] = "ffn"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gated = config.ffn == "swiglu"
        wide = config.mlp * (2 if self.gated else 1)
        self.expand = nn.Linear(config.width, wide, bias=config.bias)
        self.act = nn.SiLU() if self.gated else gelu(config)
        self.drop = nn.Dropout(config.dropout)
        self.norm = norm_of(config, config.mlp) if config.norm_inner_mlp else nn.Identity()
        self.contract = nn.Linear(config.mlp, config.width, bias=config.bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw Xavier-uniform kernels, and biases of deviation 1e-6, as the official code."""
        halves = self.expand.weight.chunk(2) if self.gated else (self.expand.weight,)
        for weight in (*halves, self.contract.weight):
            nn.init.xavier_uniform_(weight, generator=generator)
        for bias in (self.expand.bias, self.contract.bias):
            if bias is not None:
                nn.init.normal_(bias, std=1e-6, generator=generator)
        reset_norm(self.norm)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform each token by itself: (B, N, D) -> (B, N, D)."""
        return self.contract(self.hidden(tokens))

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return what the second layer sees: (B, N, D) -> (B, N, mlp)."""
        hidden = self.expand(tokens)
        if self.gated:
            gate, value = hidden.chunk(2, -1)
            hidden = self.act(gate) * value
        else:
            hidden = self.act(hidden)
        return self.norm(self.drop(hidden))

    def macs(self, tokens: int) -> int:
        """Count multiply-adds."""
        return tokens * dense_macs(self.expand, self.contract)


def gelu(config: ViTConfig) -> nn.Module:
    """Return the form of GELU that the weights were trained with."""
    match config.gelu:
        case "exact":
            return nn.GELU()
        case "tanh":
            return nn.GELU("tanh")
        case "quick":
            return QuickGELU()


class QuickGELU(nn.Module):
    """OpenAI's approximation, x * sigmoid(1.702 x) (CLIP)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply it to each number."""
        return hidden * torch.sigmoid(1.702 * hidden)


Body = TypeVar("Body", Attention, MLP)


class Branch(nn.Module, Generic[Body]):
    """One residual branch: drop(body(norm(tokens))) * scale, to be added to the tokens.

    With norm_order=after it is drop(norm(body(tokens))) * scale.
    """

    def __init__(self, config: ViTConfig, body: Body, drop_path: float) -> None:
        super().__init__()
        self.norm = norm_of(config)
        self.after = config.norm_order == "after"
        self.body: Body = body
        self.start = config.layer_scale
        self.scale = nn.Parameter(torch.empty(config.width)) if config.layer_scale else None
        self.drop = nn.Dropout(config.dropout)
        self.drop_path = drop_path

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start the norm as the identity and LayerScale as its constant; the body draws its own."""
        self.norm.reset_parameters()
        self.body.reset_parameters(generator)
        if self.scale is not None:
            nn.init.constant_(self.scale, self.start)

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Compute what to add to the tokens: (B, N, D) -> (B, N, D), or (B, layout.leading, D).

        Stochastic depth takes a random subset of the batch and does no work for the rest; its
        output is scaled up to keep the expectation. In a packed sequence the rest is computed too.
        """
        if not (self.training and self.drop_path):
            return self._added(tokens, layout)
        count = layout.packed if layout and layout.packed else tokens.shape[0]
        chosen, weights = draw_kept(count, self.drop_path, tokens.device)
        if layout and layout.packed:
            kept = tokens.new_zeros(count).index_copy_(0, chosen, weights.to(tokens.dtype))
            return self._added(tokens, layout) * layout.per_token(kept)
        # not `tokens[chosen]`, whose backward pass sorts the indices
        part = self._added(tokens.index_select(0, chosen), layout)
        part = part * weights[:, None, None].to(part.dtype)
        return part.new_zeros(count, *part.shape[1:]).index_copy(0, chosen, part)

    def entering(self, tokens: Tensor) -> Tensor:
        """Return what the body sees of the block's input: (B, N, D) -> (B, N, D)."""
        return tokens if self.after else self.norm(tokens)

    def _added(self, tokens: Tensor, layout: Layout | None) -> Tensor:
        entering, body = self.entering(tokens), self.body
        added = body(entering, layout) if body.role == "attention" else body(entering)
        added = self.drop(self.norm(added) if self.after else added)
        return added if self.scale is None else added * self.scale


def block_parts(
    blocks: Sequence[Block], outer: Sequence[nn.Module], tokens: int, within: int
) -> list[Part]:
    """Count attention, MLP and norms.

    Multiply-adds are those of matrix products, and one per element for each norm.

    Args:
        blocks: of the encoder
        outer: norms before and after them, or identities
        tokens: of an image
        within: multiply-adds of the positions within attention
    """
    attention = [branch for block in blocks for branch in block.attention]
    mlp = [branch for block in blocks for branch in block.mlp]
    attending = params_of(*(branch.body for branch in attention))
    mixing = params_of(*(branch.body for branch in mlp))
    norms = [*outer, *(norm for block in blocks for norm in block.norms())]
    normed = sum(each.normalized_shape[0] for each in norms if isinstance(each, NORMS))
    beside = params_of(*attention, *mlp, *outer) - attending - mixing  # with LayerScale
    return [
        Part("attention", attending, sum(b.body.macs(tokens) for b in attention) + within),
        Part("MLP", mixing, sum(branch.body.macs(tokens) for branch in mlp)),
        Part("norms", beside, tokens * normed),
    ]
