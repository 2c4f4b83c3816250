"""EfficientSAM's image encoder, written after its description: plain blocks and SAM's neck."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of a map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, maps: Tensor) -> Tensor:
        centered = maps - maps.mean(1, keepdim=True)
        spread = centered.square().mean(1, keepdim=True)
        unit = centered / (spread + 1e-6).sqrt()
        return unit * self.weight[:, None, None] + self.bias[:, None, None]


class Layer(nn.Module):
    """One pre-norm block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.qkv, self.attn.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.attn.qkv(self.norm1(tokens)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        tokens = tokens + self.attn.proj((weights @ v).transpose(1, 2).flatten(2))
        return tokens + self.mlp.fc2(F.gelu(self.mlp.fc1(self.norm2(tokens))))


class EfficientEncoder(nn.Module):
    """Images to a map of `neck` channels; positions for a grid of `table` are interpolated."""

    def __init__(
        self, width: int, heads: int, depth: int, patch: int, table: int, neck: int
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, patch, patch)
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + table * table, width))
        self.blocks = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.neck = nn.Sequential(
            nn.Conv2d(width, neck, 1, bias=False), ChannelNorm(neck),
            nn.Conv2d(neck, neck, 3, padding=1, bias=False), ChannelNorm(neck),
        )  # fmt: skip
        self.table = table

    def forward(self, images: Tensor) -> Tensor:
        maps = self.patch_embed.proj(images)
        places = self.pos_embed[:, 1:].unflatten(1, (self.table, self.table)).permute(0, 3, 1, 2)
        if places.shape[2:] != maps.shape[2:]:
            places = F.interpolate(places, maps.shape[2:], mode="bicubic", align_corners=False)
        tokens = (maps + places).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        return self.neck(tokens.transpose(1, 2).unflatten(2, maps.shape[2:]))
