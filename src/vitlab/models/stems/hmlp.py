"""The hierarchical MLP stem."""

import math

from torch import nn

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.stems.stem import Convolutions, norm


class HierarchicalMLP(Convolutions):
    """4x4 patches, then doubled until they are whole (Three things, section 5 and Figure 5).

    Every convolution's stride is its kernel, so patches never mix, and masking a patch's pixels or
    its token is the same. Widths D/4, D/4, …, D; no GELU after the last norm.
    """

    name = "hmlp"
    uses = ("stem_norm",)
    usual_norm = "batch"
    mixes = False

    def __init__(self, config: ViTConfig) -> None:
        width, steps = config.width, int(math.log2(config.patch)) - 2
        layers: list[nn.Module] = [nn.Conv2d(config.channels, width // 4, 4, 4)]
        for step in range(steps):
            wide = width if step == steps - 1 else width // 4
            layers += [*norm(config, width // 4), nn.GELU(), nn.Conv2d(width // 4, wide, 2, 2)]
        super().__init__(config, [*layers, *norm(config, width)])

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse patches that are not 4 doubled, and widths that 4 does not divide."""
        if config.patch < 8 or not math.log2(config.patch).is_integer():
            raise OptionError(f"stem=hmlp needs a patch of 8, 16, 32, …, not {config.patch}")
        if config.width % 4:
            raise OptionError(
                f"stem=hmlp needs a width that is a multiple of 4, not {config.width}"
            )
