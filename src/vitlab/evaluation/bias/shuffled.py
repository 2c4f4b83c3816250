"""Images cut into tiles that change places: what is left once the layout is gone.

Sources: Zhang and Zhu, Interpreting Adversarially Trained Convolutional Neural Networks, 2019 (the
test); Naseer et al., Intriguing Properties of Vision Transformers, 2021, section 3.3 (of ViTs).
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.evaluation.bias.probed_images import Probed

GRIDS = (2, 4, 8)  # tiles per side


def tile_orders(count: int, tiles: int, generator: np.random.Generator) -> Tensor:
    """Draw a permutation of the tiles for each image, all permutations equally likely.

    Args:
        count: images
        tiles: of an image
        generator: of the draws

    Returns:
        int64 (count, tiles): the tile that each place gets.
    """
    rows = np.broadcast_to(np.arange(tiles), (count, tiles))
    return torch.from_numpy(generator.permuted(rows, axis=1))


def shuffle_tiles(images: Tensor, orders: Tensor) -> Tensor:
    """Cut each image into a square grid of tiles, and put these in another order.

    Args:
        images: (b, channels, H, W)
        orders: int64 (b, k * k): the number of the tile, in raster order, that each place gets

    Returns:
        (b, channels, H, W).

    Raises:
        OptionError: k divides not both sides.
    """
    count, channels, rows, columns = images.shape
    grid = round(orders.shape[1] ** 0.5)
    if rows % grid or columns % grid:
        raise OptionError(
            f"images of {rows}x{columns} pixels cannot be cut into {grid}x{grid} equal tiles: "
            "choose a grid that divides both sides"
        )
    high, wide = rows // grid, columns // grid
    tiles = images.reshape(count, channels, grid, high, grid, wide)
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    each = torch.arange(count, device=images.device)[:, None]
    moved = tiles[each, orders.to(images.device)]
    moved = moved.unflatten(1, (grid, grid)).permute(0, 3, 1, 4, 2, 5)
    return moved.reshape(images.shape)


def shuffled_figures(probed: Probed, generator: np.random.Generator) -> dict[str, float]:
    """Return the accuracy on shuffled images, `shuffled_2` for 2 x 2 tiles, and so on.

    Each image has a permutation of its own. A grid that does not divide the image is left out.
    """
    figures = {}
    for grid in GRIDS:
        if not any(side % grid for side in probed.size):
            orders = tile_orders(len(probed), grid**2, generator)
            figures[f"shuffled_{grid}"] = probed.accuracy(partial(_shuffled, orders=orders))
    return figures


def _shuffled(images: Tensor, places: slice, *, orders: Tensor) -> Tensor:
    """Shuffle the images at some places, by the orders of all (n, tiles)."""
    return shuffle_tiles(images, orders[places])
