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
    uses = ("stem_norm", "stem_act", "stem_bias", "stem_padding", "stem_stride")

    def __init__(self, config: ViTConfig) -> None:
        channels, width, patch = config.channels, config.width, config.patch
        act = [nn.GELU()] if config.stem_act == "gelu" else []
        step, padding = config.stem_stride or patch, config.stem_padding
        layer = nn.Conv2d(channels, width, patch, step, padding, bias=config.stem_bias)
        super().__init__(config, [layer, *norm(config, width), *act])
        self.mixes = padding > 0 or config.stem_stride > 0  # both move the kernel across patches

    @staticmethod
    def repatched(
        tensors: dict[str, Tensor], config: ViTConfig, patch: int, interpolation: Filter
    ) -> dict[str, Tensor]:
        """Resample the kernel by the pseudo-inverse; all else does not depend on the patch."""
        for name in ("stem_padding", "stem_stride"):
            if getattr(config, name):
                raise OptionError(f"{name} keeps the patch as it is: set {name}=0")
        kernel = resample_kernels(tensors["layers.0.weight"], patch, interpolation)
        return tensors | {"layers.0.weight": kernel}

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse padding that would make more patches, and strides with gaps or without tiles."""
        if config.stem_stride > config.patch:
            raise OptionError(
                f"stem_stride={config.stem_stride} must be at most patch={config.patch}"
            )
        if config.stem_stride and (config.fit == "native" or config.stem_padding):
            raise OptionError("stem_stride needs stem_padding=0, and images of one size: fit=crop")
        if 2 * config.stem_padding >= config.patch:
            raise OptionError(
                f"stem_padding={config.stem_padding} must be less than half of patch="
                f"{config.patch}: {(config.patch - 1) // 2} at most"
            )
