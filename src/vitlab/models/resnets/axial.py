"""The axial ResNet: a BiT ResNet whose 3x3 convolutions are attention along lines."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from vitlab.models.resnets.body import Flavor, PostRoot, PostUnit, ResNetBody, group_norm

AXIAL = Flavor(1e-4, 1e-10, "variance", same=True)  # scenic, baselines/axial_resnet.py
HEADS = 8


class LineAttention(nn.Module):
    """Self-attention along one axis of a map, with relative positions.

    (B, width, H, W) -> (B, width, H, W); every line along the axis, norms included, by itself.

    For a query at i and a key at j of the line, with q and k half as wide as v, and every r a
    learned vector that depends on the distance only:

        logit(i, j) = q_i k_j + q_i rk(j - i) + k_j rq(i - j)
        output_i = sum_j softmax_j(logit(i, j)) (v_j + rv(j - i))

    Position-sensitive axial attention (Axial-DeepLab, arXiv 2003.07853), in scenic's form: group
    norm on q, k, v and on the outputs, none on the logits, no 1 / sqrt(d). One term is not
    scenic's: where its code has k_i rq(j - i) for the last logit, the key of the query's own place,
    this has k_j rq(i - j), transposed as in the paper and its authors' code.

    Args:
        width: channels
        heads: must divide width into an even number
        length: of a line, along the axis
        axis: of (B, width, H, W): 2 attends along the height, 3 along the width
    """

    role: ClassVar[str] = "attention"

    def __init__(self, width: int, heads: int, length: int, axis: int) -> None:
        super().__init__()
        self.heads, self.axis = heads, axis
        self.head_width = width // heads
        self.qkv = nn.Conv1d(width, 2 * width, 1, bias=False)
        self.norm_qkv = group_norm(2 * width, AXIAL)
        self.relative = nn.Parameter(torch.empty(2 * self.head_width, 2 * length - 1))
        self.norm = group_norm(width, AXIAL)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw from normals of standard deviations 1 / width and 1 / head width, as scenic does."""
        nn.init.normal_(self.qkv.weight, std=1 / self.qkv.in_channels, generator=generator)
        nn.init.normal_(self.relative, std=1 / self.head_width, generator=generator)
        self.norm_qkv.reset_parameters()
        self.norm.reset_parameters()

    def forward(self, features: Tensor) -> Tensor:
        """Let every place attend to its line: (B, width, H, W) -> (B, width, H, W)."""
        across = 5 - self.axis  # the other axis: its places are one line each
        lines = features.movedim(across, 1)  # (B, lines, width, n)
        gathered = self._attend(lines.flatten(0, 1))
        return gathered.unflatten(0, lines.shape[:2]).movedim(1, across)

    def _attend(self, lines: Tensor) -> Tensor:
        """Attend within each line by itself: (lines, width, n) -> (lines, width, n)."""
        widths = (self.head_width // 2, self.head_width // 2, self.head_width)
        qkv = self.norm_qkv(self.qkv(lines)).unflatten(1, (self.heads, -1))
        q, k, v = qkv.split(widths, dim=2)  # (lines, heads, d, n)
        rq, rk, rv = self._by_place().split(widths)  # (d, n, n)
        logits = (
            torch.einsum("lhdi,lhdj->lhij", q, k)
            + torch.einsum("lhdi,dij->lhij", q, rk)
            + torch.einsum("lhdj,dji->lhij", k, rq)
        )
        weights = logits.softmax(-1)
        gathered = torch.einsum("lhij,lhdj->lhdi", weights, v)
        gathered = gathered + torch.einsum("lhij,dij->lhdi", weights, rv)
        return self.norm(gathered.flatten(1, 2))

    def _by_place(self) -> Tensor:
        """Return the relative table by pairs of places: [:, i, j] is that of distance j - i."""
        n = (self.relative.shape[1] + 1) // 2
        places = torch.arange(n, device=self.relative.device)
        return self.relative[:, places - places[:, None] + n - 1]


class AxialBody(ResNetBody):
    """The axial ResNet that the ViT paper compares with Axial-ViT (appendix, axial attention).

    (B, channels, H, W) -> (B, features, ceil(H / stride), ceil(W / stride)), after the last ReLU.
    The hybrids' ResNet with attention along the height, then along the width, in place of every
    3x3 convolution, and 2x2 means where that had a stride. Source: scenic's
    baselines/axial_resnet.py, but for one term of the attention (see `LineAttention`).

    Args:
        stages: bottlenecks in every stage, (3, 4, 6, 3) for the 50-layer one
        channels: of the images
        image_size: (rows, columns) in pixels; the relative positions are of this size only
    """

    def __init__(self, stages: tuple[int, ...], channels: int, image_size: tuple[int, int]) -> None:
        def unit(inputs: int, width: int, stride: int) -> PostUnit:
            pixels = width // (16 * stride)  # between two places of what enters
            rows, columns = (-(-side // pixels) for side in image_size)
            middle = nn.Sequential(
                LineAttention(width, HEADS, rows, axis=2),
                LineAttention(width, HEADS, columns, axis=3),
            )
            if stride == 2:  # a place beyond an odd side counts as 0, as SAME has it
                middle.append(nn.AvgPool2d(2, ceil_mode=True, divisor_override=4))
            return PostUnit(inputs, width, stride, middle, AXIAL)

        super().__init__(PostRoot(channels, 64, AXIAL), stages, unit)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw convolutions as in the other bodies, then the attentions."""
        super().reset_parameters(generator)
        for part in self.modules():
            if isinstance(part, LineAttention):
                part.reset_parameters(generator)
