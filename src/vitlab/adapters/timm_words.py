"""What timm's words mean: pools, patches, numbers of blocks, sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.errors import OptionError
from vitlab.images import Size

POOLS = {"token": "token", "mean": "avg", "attention": "map"}  # ours -> timm's


@dataclass(frozen=True)
class PatchEmbed:
    """What code for timm asks of `model.patch_embed`: the sizes, each rows and columns.

    Attributes:
        img_size: of the input, in pixels
        patch_size: of a patch, in pixels; a ResNet's stride
        grid_size: of the grid of patches
    """

    img_size: tuple[int, int]
    patch_size: tuple[int, int]
    grid_size: tuple[int, int]

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return self.grid_size[0] * self.grid_size[1]

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """Return the grid of an image of another size."""
        return img_size[0] // self.patch_size[0], img_size[1] // self.patch_size[1]


def chosen_blocks(indices: int | Sequence[int] | None, count: int) -> list[int]:
    """Return numbers of blocks, from 0, in timm's reading of `indices`.

    Raises:
        OptionError: a block that there is not.
    """
    if indices is None:
        return list(range(count))
    wanted = [count - indices + n for n in range(indices)] if isinstance(indices, int) else indices
    for number in wanted:
        if not -count <= number < count:
            raise OptionError(f"block {number} of {count}: choose from 0 to {count - 1}")
    return [number % count for number in wanted]


def pixels(size: Size) -> Size:
    """Return a size as one number if it is square."""
    if isinstance(size, int):
        return size
    rows, columns = size
    return rows if rows == columns else (rows, columns)
