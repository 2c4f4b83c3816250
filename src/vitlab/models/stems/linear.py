"""The ViT paper's own stem."""

from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.stems.kernels import Filter, resample_kernels
from vitlab.models.stems.stem import Convolutions, norm


class Linear(Convolutions):
    """One linear map of every flattened patch (ViT paper, equation 1), as a strided convolution.

    A norm and a GELU after it give the other linear rows of Three things, Table 7.
    """

    name = "linear"
    uses = ("stem_norm", "stem_act", "stem_bias", "stem_stride")

    def __init__(self, config: ViTConfig) -> None:
        channels, width, patch = config.channels, config.width, config.patch
        act = [nn.GELU()] if config.stem_act == "gelu" else []
        step = config.stem_stride or patch
        layer = nn.Conv2d(channels, width, patch, step, bias=config.stem_bias)
        super().__init__(config, [layer, *norm(config, width), *act])
        self.mixes = config.stem_stride > 0  # which moves the kernel across patches

    @staticmethod
    def repatched(
        tensors: dict[str, Tensor], config: ViTConfig, patch: int, interpolation: Filter
    ) -> dict[str, Tensor]:
        """Resample the kernel by the pseudo-inverse; all else does not depend on the patch."""
        if config.stem_stride:
            raise OptionError("stem_stride keeps the patch as it is: set stem_stride=0")
        kernel = resample_kernels(tensors["layers.0.weight"], patch, interpolation)
        return tensors | {"layers.0.weight": kernel}

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse strides with gaps or without tiles."""
        if config.stem_stride > config.patch:
            raise OptionError(
                f"stem_stride={config.stem_stride} must be at most patch={config.patch}"
            )
        if config.stem_stride and config.fit == "native":
            raise OptionError("stem_stride needs images of one size: fit=crop")
