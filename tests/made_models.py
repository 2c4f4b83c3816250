"""Models in which every number counts, and when two are the same."""

from typing import Any

import torch
from torch import Tensor, nn

import vitlab

NAME = "ViT(width=16,depth=2,heads=2,mlp=32)/8"


def tiny(seed: int = 0, name: str = NAME, classes: int = 3, **choices: Any) -> Any:
    """A model for images of 16 pixels, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return vitlab.create(name, classes, 16, generator=generator, **choices)


def noisy(model: Any, spread: float = 0.05, seed: int = 1) -> Any:
    """Move every number of the state, so that no zero or one hides a mistake; evaluating."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(spread * torch.randn(tensor.shape, generator=generator))
    return model.eval()


def equal(one: nn.Module, other: nn.Module) -> bool:
    """Whether names, types and bits are the same, zeros of both signs included."""
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(
        each.dtype == theirs[name].dtype
        and torch.equal(
            each.reshape(-1).view(torch.uint8), theirs[name].reshape(-1).view(torch.uint8)
        )
        for name, each in mine.items()
    )


def close(got: Tensor, want: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


def pixels(*shape: int, seed: int = 1) -> Tensor:
    """Images of so many numbers, by default two of three channels of a square."""
    shape = (2, 3, *shape, *shape) if len(shape) == 1 else shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
