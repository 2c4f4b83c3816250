"""A convolution whose kernels do not overlap, as one product over patches."""

from collections.abc import Callable
from typing import TypeGuard

from torch import Tensor, nn

from vitlab.models.fast.dense import Dense
from vitlab.models.fuse import dense_of


class PatchProduct(nn.Module):
    """One product for all patches of a map: (B, C, H, W) -> (B, out, H / P, W / P).

    Args:
        layer: a convolution that `is_product`
        make: the form of a linear layer
    """

    def __init__(self, layer: nn.Conv2d, make: Callable[[nn.Linear], Dense]) -> None:
        super().__init__()
        self.side = layer.kernel_size
        self.dense = make(dense_of(layer.weight.detach().flatten(1), layer.bias))

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, out, H / P, W / P), in the precision of the images."""
        (rows, columns), count = self.side, images.shape[0]
        cut = images.to(self.dense.dtype).unflatten(3, (-1, columns)).unflatten(2, (-1, rows))
        grid = cut.shape[2], cut.shape[4]
        patches = cut.permute(0, 2, 4, 1, 3, 5).reshape(count, grid[0] * grid[1], -1)
        tokens = self.dense(patches).to(images.dtype)  # (B, N, out)
        return tokens.transpose(1, 2).unflatten(2, grid)


def is_product(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether a layer is a convolution over patches that do not overlap."""
    return (
        isinstance(layer, nn.Conv2d)
        and layer.kernel_size == layer.stride
        and layer.padding == (0, 0)
        and layer.groups == 1
        and layer.dilation == (1, 1)
    )
