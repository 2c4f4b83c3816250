"""Image encoders of other people's code, written down independently: names, shapes, arithmetic."""

import torch
from torch import Tensor, nn


class ClipTower(nn.Module):
    """The image encoder of OpenAI's CLIP and of open_clip, by the names of their tensors."""

    def __init__(
        self, width: int, depth: int, patch: int, size: int, out: int, act: nn.Module
    ) -> None:
        super().__init__()
        rows = size // patch
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.positional_embedding = nn.Parameter(torch.randn(rows * rows + 1, width))
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = nn.ModuleDict(
            {"resblocks": nn.ModuleList(ClipBlock(width, act) for _ in range(depth))}
        )
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(width**-0.5 * torch.randn(width, out))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv1(images).flatten(2).mT
        token = self.class_embedding.expand(len(images), 1, -1)
        tokens = self.ln_pre(torch.cat([token, patches], 1) + self.positional_embedding)
        for block in self.transformer["resblocks"]:  # type: ignore[union-attr]
            tokens = block(tokens)
        pooled: Tensor = self.ln_post(tokens[:, 0]) @ self.proj
        return pooled


class ClipBlock(nn.Module):
    """PyTorch's attention module, and an MLP whose layers are called c_fc and c_proj."""

    def __init__(self, width: int, act: nn.Module) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, width // 64, batch_first=True)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("act", act)
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.ln_1(tokens)
        tokens = tokens + self.attn(normed, normed, normed, need_weights=False)[0]
        return tokens + self.mlp(self.ln_2(tokens))


class VitPytorch(nn.Module):
    """lucidrains' vit-pytorch before it normalized pixels, by the names of its tensors."""

    def __init__(self, width: int, depth: int, patch: int, size: int, classes: int) -> None:
        super().__init__()
        self.patch, self.heads = patch, width // 64
        rows = size // patch
        self.to_patch_embedding = nn.Sequential(nn.Identity(), nn.Linear(3 * patch * patch, width))
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.randn(1, rows * rows + 1, width))
        layers = nn.ModuleList()
        for _ in range(depth):
            attention = nn.Module()
            attention.norm = nn.LayerNorm(width)
            attention.fn = nn.Module()
            attention.fn.to_qkv = nn.Linear(width, 3 * width, bias=False)
            attention.fn.to_out = nn.Sequential(nn.Linear(width, width), nn.Identity())
            mlp = nn.Module()
            mlp.norm = nn.LayerNorm(width)
            mlp.fn = nn.Module()
            first, last = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
            mlp.fn.net = nn.Sequential(first, nn.GELU(), nn.Identity(), last)
            layers.append(nn.ModuleList([attention, mlp]))
        self.transformer = nn.ModuleDict({"layers": layers})
        self.mlp_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images: Tensor) -> Tensor:
        p, (batch, _, height, _) = self.patch, images.shape
        cut = images.unflatten(2, (height // p, p)).unflatten(4, (-1, p))  # (B, c, h, p1, w, p2)
        cut = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        tokens = torch.cat([self.cls_token.expand(batch, -1, -1), self.to_patch_embedding(cut)], 1)
        tokens = tokens + self.pos_embedding
        for attention, mlp in self.transformer["layers"]:  # type: ignore[union-attr,misc]
            q, k, v = attention.fn.to_qkv(attention.norm(tokens)).chunk(3, -1)
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
            scores = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
            tokens = tokens + attention.fn.to_out((scores @ v).transpose(1, 2).flatten(2))
            tokens = tokens + mlp.fn.net(mlp.norm(tokens))
        logits: Tensor = self.mlp_head(tokens[:, 0])
        return logits
