"""Random crops that a batch has of each image, such as the large and small ones of DINO."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.augment.draws import draws_needed
from vitlab.data.decode.crop_box import DRAWS, random_box
from vitlab.data.decode.pixels import Box, ChooseBox
from vitlab.data.settings import Augment


@dataclass(frozen=True)
class View:
    """One of the random crops of an image that a batch has (multi-crop; Caron et al., 2020).

    Attributes:
        size: rows and columns of the result, in pixels
        area: least and greatest share of the image
        augment: what is done to the crop; its aspect ratio is the crop's
    """

    size: tuple[int, int]
    area: tuple[float, float]
    augment: Augment

    @property
    def draws(self) -> int:
        """The number of random numbers for an image's crop and its augmentation."""
        return DRAWS + draws_needed(self.augment)

    def box(self, randoms: NDArray[np.float32], *, native: bool = False) -> ChooseBox:
        """Return where to crop an image, given `DRAWS` random numbers.

        Args:
            randoms: uniform in [0, 1)
            native: whether the aspect ratio is around the image's own, not that of `size`
        """
        aspect = (1 / self.augment.aspect, self.augment.aspect)
        given = randoms.tolist()

        def choose(rows: int, columns: int) -> Box:
            out = (rows, columns) if native else self.size
            return random_box(rows, columns, *out, self.area, aspect, given)

        return choose
