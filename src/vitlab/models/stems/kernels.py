"""Patch kernels of another size, which see what the old ones saw (FlexiViT)."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.device import exact

Filter = Literal["bilinear", "bicubic"]


def resample_kernels(weight: Tensor, patch: int, interpolation: Filter = "bilinear") -> Tensor:
    """Return patch kernels for another patch size: (D, C, P, P) -> (D, C, patch, patch).

    With B the linear map that resizes a patch, antialiased, the new kernel is the pseudo-inverse of
    B's transpose times the old one: the least-squares solution of <B x, new> = <x, old>, exact
    where patches become larger (PI-resize; Beyer et al., FlexiViT, 2023, section 3.4).

    Args:
        weight: the kernels, square
        patch: pixels per side
        interpolation: the filter of B: bilinear, as in big_vision (flexi/vit.py), or bicubic, as
            timm has it
    """
    old = weight.shape[-1]
    if old == patch:
        return weight
    single = torch.eye(old * old).unflatten(1, (1, old, old))  # each pixel by itself
    resized = F.interpolate(single, (patch, patch), mode=interpolation, antialias=True)
    inverse = torch.linalg.pinv(resized.flatten(1).double())  # (patch², old²)
    wide = exact(weight).flatten(2)
    return (wide @ inverse.T.to(wide.device)).unflatten(2, (patch, patch)).to(weight)
