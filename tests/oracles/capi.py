"""CAPI's encoder, written again from its description: names, shapes and arithmetic of its files.

Source: facebookresearch/capi, model.py (EncoderDecoder, without the decoder).
"""

import math

import torch
from torch import Tensor, nn


class Turn(nn.Module):
    """Angles of every channel from two coordinates."""

    def __init__(self, head: int) -> None:
        super().__init__()
        line = 7 * (7 / 7e-4) ** torch.linspace(0, -1, head // 4)
        both = torch.zeros(2, head)
        both[0, : head // 2] = both[1, head // 2 :] = torch.cat([line, line])
        self.freqs = nn.Parameter(2 * math.pi * both)

    def forward(self, heads: Tensor, places: Tensor) -> Tensor:
        angle, (left, right) = places @ self.freqs, heads.chunk(2, -1)
        return heads * angle.cos() + torch.cat([-right, left], -1) * angle.sin()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        for name in ("q_proj", "k_proj", "v_proj", "proj"):
            self.add_module(name, nn.Linear(width, width, bias=False))
        self.rope = Turn(width // heads)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        q, k, v = (
            self.get_submodule(name)(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        q, k = self.rope(q, places), self.rope(k, places)
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
        gathered: Tensor = self.get_submodule("proj")((weights @ v).transpose(1, 2).flatten(2))
        return gathered


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width, bias=False)
        self.fc2 = nn.Linear(4 * width, width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.fc2(nn.functional.gelu(self.fc1(tokens)))
        return out


class Residual(nn.Module):
    def __init__(self, width: int, fn: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.RMSNorm(width, eps=1e-5), fn

    def forward(self, tokens: Tensor, *places: Tensor) -> Tensor:
        out: Tensor = tokens + self.fn(self.norm(tokens), *places)
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.residual1 = Residual(width, Attention(width, heads))
        self.residual2 = Residual(width, MLP(width))


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))


class CAPI(nn.Module):
    """Registers and patches as they leave the encoder: (B, 3, H, W) -> (B, R + N, D)."""

    def __init__(self, width: int, heads: int, depth: int, patch: int, registers: int) -> None:
        super().__init__()
        self.registers = nn.Parameter(torch.randn(1, registers, width))
        self.mask_token = nn.Parameter(torch.zeros(1, width))
        self.patch_embed = nn.Conv2d(3, width, patch, patch)
        self.encoder = Encoder(width, heads, depth)

    def places(self, rows: int, columns: int) -> Tensor:
        """Registers walk around the frame of the patches, from (0, 0) to (1, 1) and back."""
        side, walk = self.registers.shape[1] // 4, []
        for edge in range(4):
            for step in range(side):
                at = step / side
                walk.append([(at, 0.0), (1.0, at), (1 - at, 1.0), (0.0, 1 - at)][edge])
        patches = torch.cartesian_prod(torch.linspace(0, 1, rows), torch.linspace(0, 1, columns))
        return torch.cat([torch.tensor(walk) * patches.amax(0), patches])

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch_embed(images)
        places = self.places(*tokens.shape[2:])
        tokens = tokens.flatten(2).transpose(1, 2)
        tokens = torch.cat([self.registers.expand(len(tokens), -1, -1), tokens], 1)
        for block in self.encoder.blocks:
            tokens = block.residual2(block.residual1(tokens, places))
        return nn.functional.rms_norm(tokens, tokens.shape[-1:], eps=1e-5)
