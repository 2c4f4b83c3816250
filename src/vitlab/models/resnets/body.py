"""The BiT ResNets: the body of the hybrids, and that of the BiT paper.

Google released the same network in several forms that do not give the same numbers: a `Flavor`
says where they differ in detail, `PostUnit` and `PreUnit` are the two orders of norm and
convolution. The axial ResNet (`vitlab.models.resnets.axial`) is made of the same parts.

The modules hold empty tensors until `reset_parameters` is called or weights are loaded.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.configs.model_config import map_features, map_stride
from vitlab.models.layers import lecun_normal_


class Flavor(NamedTuple):
    """How the released forms differ, apart from the order of norm and convolution."""

    norm_eps: float  # of the group norms
    weight_eps: float  # of the weight standardization
    eps_on: Literal["std", "variance"]  # what weight_eps is added to
    same: bool  # whether a stride of 2 pads as XLA's SAME; otherwise kernel // 2 all around


HYBRID = Flavor(1e-6, 1e-5, "std", same=True)  # vision_transformer, models_resnet.py
TIMM = Flavor(1e-5, 1e-8, "variance", same=True)  # timm, vision_transformer_hybrid.py
BIT = Flavor(1e-5, 1e-10, "variance", same=False)  # big_transfer, bit_pytorch/models.py


def standardize(weight: Tensor, flavor: Flavor) -> Tensor:
    """Return kernels with mean 0 and standard deviation 1 per output channel: (out, in, k, k).

    The standard deviation is the biased one (weight standardization, arXiv 1903.10520).
    """
    std, mean = torch.std_mean(weight, (1, 2, 3), correction=0, keepdim=True)
    eps = flavor.weight_eps
    scale = std + eps if flavor.eps_on == "std" else (std.square() + eps).sqrt()
    return (weight - mean) / scale


def pad_same(features: Tensor, kernel: int, stride: int, value: float = 0) -> Tensor:
    """Pad (B, C, H, W) as XLA's SAME: ceil(size / stride) outputs, the odd pixel at the end."""
    pads: list[int] = []
    for size in (features.shape[3], features.shape[2]):  # F.pad counts from the last axis
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(features, pads, value=value) if any(pads) else features


class StdConv(nn.Module):
    """A convolution without bias whose kernel is standardized in every pass.

    (B, inputs, H, W) -> (B, outputs, ceil(H / stride), ceil(W / stride)), in either padding.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, flavor: Flavor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))
        self.kernel, self.stride, self.flavor = kernel, stride, flavor
        self.baked: Tensor | None = None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw a LeCun-normal kernel, Flax's default, as the official code does."""
        lecun_normal_(self.weight, generator)

    def fuse(self) -> None:
        """Store the standardized kernel, for inference."""
        kernel = standardize(self.weight.detach(), self.flavor)
        del self.weight, self.baked
        self.register_buffer("baked", kernel)

    def forward(self, features: Tensor) -> Tensor:
        """Convolve with the standardized kernel."""
        padding = self.kernel // 2
        if self.flavor.same and self.stride > 1:
            features, padding = pad_same(features, self.kernel, self.stride), 0
        # A stride beyond the width changes nothing, but oneDNN then leaves a part of the kernel's
        # gradient in bf16 as the memory was (PyTorch 2.13).
        stride = [1 if side == 1 else self.stride for side in features.shape[2:]]
        return F.conv2d(features, self.kernels(), stride=stride, padding=padding)

    def kernels(self) -> Tensor:
        """Return the standardized kernels, (out, in, k, k)."""
        return standardize(self.weight, self.flavor) if self.baked is None else self.baked


def group_norm(channels: int, flavor: Flavor) -> nn.GroupNorm:
    """Return the norm of every BiT ResNet: 32 groups."""
    return nn.GroupNorm(32, channels, flavor.norm_eps)


class ConvNorm(nn.Module):
    """A standardized convolution, then its norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, flavor: Flavor) -> None:
        super().__init__()
        self.conv = StdConv(inputs, outputs, kernel, stride, flavor)
        self.norm = group_norm(outputs, flavor)

    def forward(self, features: Tensor) -> Tensor:
        """Convolve, then normalize."""
        return self.norm(self.conv(features))


class PostRoot(nn.Module):
    """The stem before the post-activation units: a quarter of the size.

    (B, channels, H, W) -> (B, width, ceil(H / 4), ceil(W / 4)), not negative.
    """

    def __init__(self, channels: int, width: int, flavor: Flavor) -> None:
        super().__init__()
        self.reduce = ConvNorm(channels, width, 7, 2, flavor)

    def forward(self, images: Tensor) -> Tensor:
        """Apply convolution, norm, ReLU, and a 3x3 maximum with stride 2."""
        features = F.relu(self.reduce(images))
        return F.max_pool2d(pad_same(features, 3, 2, -torch.inf), 3, 2)


class PostUnit(nn.Module):
    """A bottleneck in the first ResNet's order: relu(shortcut + norm(conv(...))).

    (B, inputs, H, W) -> (B, 4 width, ceil(H / stride), ceil(W / stride)).

    Args:
        inputs: channels that come in
        width: channels in the middle
        stride: of the middle and of the shortcut
        middle: what mixes places, norm included: (B, width, H, W) to (B, width, H', W')
        flavor: see `Flavor`
    """

    def __init__(
        self, inputs: int, width: int, stride: int, middle: nn.Module, flavor: Flavor
    ) -> None:
        super().__init__()
        changes = inputs != 4 * width or stride > 1
        self.shortcut = ConvNorm(inputs, 4 * width, 1, stride, flavor) if changes else None
        self.reduce = ConvNorm(inputs, width, 1, 1, flavor)
        self.middle = middle
        self.expand = ConvNorm(width, 4 * width, 1, 1, flavor)

    def forward(self, features: Tensor) -> Tensor:
        """Add the unit's residual branch to its shortcut."""
        shortcut = features if self.shortcut is None else self.shortcut(features)
        residual = F.relu(self.middle(F.relu(self.reduce(features))))
        return F.relu(shortcut + self.expand(residual))


class PreUnit(nn.Module):
    """A bottleneck in the second ResNet's order, norm and ReLU before each convolution.

    (B, inputs, H, W) -> (B, 4 width, ceil(H / stride), ceil(W / stride)). The shortcut, where the
    shape changes, starts from what the first convolution sees and has no norm.
    """

    def __init__(self, inputs: int, width: int, stride: int, flavor: Flavor) -> None:
        super().__init__()
        changes = inputs != 4 * width or stride > 1
        self.norm1 = group_norm(inputs, flavor)
        self.shortcut = StdConv(inputs, 4 * width, 1, stride, flavor) if changes else None
        self.conv1 = StdConv(inputs, width, 1, 1, flavor)
        self.norm2 = group_norm(width, flavor)
        self.conv2 = StdConv(width, width, 3, stride, flavor)
        self.norm3 = group_norm(width, flavor)
        self.conv3 = StdConv(width, 4 * width, 1, 1, flavor)

    def forward(self, features: Tensor) -> Tensor:
        """Add the unit's residual branch to its shortcut."""
        active = F.relu(self.norm1(features))
        shortcut = features if self.shortcut is None else self.shortcut(active)
        residual = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return shortcut + self.conv3(F.relu(self.norm3(residual)))


class UnitShape(NamedTuple):
    """The sizes of a bottleneck."""

    inputs: int
    width: int
    stride: int


def unit_shapes(stages: tuple[int, ...], width: int) -> list[list[UnitShape]]:
    """Return the units of every stage; from the second one on, widths double and sizes halve."""
    shapes: list[list[UnitShape]] = []
    inputs = width
    for number, units in enumerate(stages):
        shapes.append([])
        for unit in range(units):
            stride = 2 if number > 0 and unit == 0 else 1
            shapes[-1].append(UnitShape(inputs, width * 2**number, stride))
            inputs = 4 * width * 2**number
    return shapes


class ResNetBody(nn.Module):
    """A root, then stages of units, to a map of features.

    (B, channels, H, W) -> (B, features, ceil(H / stride), ceil(W / stride)).

    Args:
        root: images to what enters the first stage
        stages: bottlenecks in every stage
        unit: makes one, given the channels that come in, those of its middle, and its stride
        widen: the factor on every width
    """

    def __init__(
        self,
        root: nn.Module,
        stages: tuple[int, ...],
        unit: Callable[[int, int, int], nn.Module],
        widen: int = 1,
    ) -> None:
        super().__init__()
        self.root = root
        self.stages = nn.Sequential()
        for shapes in unit_shapes(stages, 64 * widen):
            self.stages.append(nn.Sequential(*(unit(*shape) for shape in shapes)))
        self.features, self.stride = map_features(stages, widen), map_stride(stages)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every kernel; norms start as the identity, a post-activation branch's last one at 0.

        So every post-activation unit starts as its shortcut; a pre-activation unit ends in a
        convolution and does not.
        """
        for part in self.modules():
            if isinstance(part, StdConv):
                part.reset_parameters(generator)
            elif isinstance(part, nn.GroupNorm):
                part.reset_parameters()
        for part in self.modules():
            if isinstance(part, PostUnit):
                nn.init.zeros_(part.expand.norm.weight)

    def enter(self, images: Tensor) -> Tensor:
        """Compute the input of the first stage."""
        return self.root(images)

    def finish(self, features: Tensor) -> Tensor:
        """Compute the map of features from what leaves the last stage."""
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Compute the map of features."""
        return self.finish(self.stages(self.enter(images)))


class HybridBody(ResNetBody):
    """The post-activation ResNet in front of the hybrids' encoder (ViT paper, section 3.1).

    Its map is the output of the last unit. Source: vision_transformer's models_resnet.py and
    models_vit.py.

    Args:
        stages: bottlenecks in every stage, (3, 4, 9) for R50+ViT-B/16; () is the stem alone (R+Ti)
        channels: of the images
        flavor: whose epsilons
    """

    def __init__(self, stages: tuple[int, ...], channels: int = 3, flavor: Flavor = HYBRID) -> None:
        def unit(inputs: int, width: int, stride: int) -> PostUnit:
            middle = ConvNorm(width, width, 3, stride, flavor)
            return PostUnit(inputs, width, stride, middle, flavor)

        super().__init__(PostRoot(channels, 64, flavor), stages, unit)


class BiTBody(ResNetBody):
    """The pre-activation ResNet of Big Transfer (arXiv 1912.11370), after its final norm and ReLU.

    The mean over all places of its map is what its classifier sees. Source: big_transfer's
    bit_pytorch/models.py.

    Args:
        stages: bottlenecks in every stage, (3, 4, 6, 3) for R50
        channels: of the images
        widen: the factor on every width, 2 for R152x2
    """

    def __init__(self, stages: tuple[int, ...], channels: int = 3, widen: int = 1) -> None:
        root = StdConv(channels, 64 * widen, 7, 2, BIT)
        super().__init__(root, stages, lambda i, w, s: PreUnit(i, w, s, BIT), widen)
        self.norm = group_norm(self.features, BIT)

    def enter(self, images: Tensor) -> Tensor:
        """Compute the input of the first stage."""
        # Pad the maximum with zeros, not -inf: they count, since nothing was rectified yet
        return F.max_pool2d(F.pad(self.root(images), (1, 1, 1, 1)), 3, 2)

    def finish(self, features: Tensor) -> Tensor:
        """Compute the map of features from what leaves the last stage."""
        return F.relu(self.norm(features))
