"""LeViT's convolutional stem."""

import math

from torch import nn

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.stems.stem import Convolutions, norm


class LeViT(Convolutions):
    """3x3 convolutions with stride 2, the width doubled each time (Graham et al., 2021).

    GELU between, as Three things has them (Table 7); biases only where no norm follows.
    """

    name = "conv"
    uses = ("stem_norm",)
    usual_norm = "batch"

    def __init__(self, config: ViTConfig) -> None:
        steps, bias = int(math.log2(config.patch)), config.stem_norm == "none"
        layers: list[nn.Module] = []
        narrow = config.channels
        for step in range(steps):
            wide = config.width >> (steps - 1 - step)
            layers += [nn.Conv2d(narrow, wide, 3, 2, 1, bias=bias), *norm(config, wide), nn.GELU()]
            narrow = wide
        super().__init__(config, layers[:-1])

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse patches that are not a power of 2, and widths that cannot be halved as often."""
        if config.patch < 2 or not math.log2(config.patch).is_integer():
            raise OptionError(f"stem=conv needs a patch of 2, 4, 8, …, not {config.patch}")
        if config.width % (parts := config.patch // 2):
            raise OptionError(
                f"stem=conv with patch={config.patch} needs a width that is a multiple of {parts}, "
                f"not {config.width}"
            )
