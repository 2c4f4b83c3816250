"""The small discrete VAE: strided convolutions, residual blocks, and their mirror.

Layers and their order are those of lucidrains/DALLE-pytorch (`DiscreteVAE`). They start as
PyTorch starts them, as they do there.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.layers import modules


class Residual(nn.Module):
    """Two 3x3 convolutions and a 1x1 one, ReLU between them, beside a shortcut.

    (B, width, rows, columns), as it enters.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolutions = modules(
            nn.Conv2d(width, width, kernel, padding=kernel // 2) for kernel in (3, 3, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Add what the convolutions make of a map."""
        first, second, third = self.convolutions
        return features + third(F.relu(second(F.relu(first(features)))))


class StridedEncoder(nn.Module):
    """Images, (B, channels, H, W), to the map that codes are told from, (B, width, rows, columns).

    Each strided convolution halves the sides; the residual blocks follow the last one.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        inputs = [config.channels] + [config.width] * (config.halvings - 1)
        self.reduce = modules(nn.Conv2d(each, config.width, 4, 2, 1) for each in inputs)
        self.residual = modules(Residual(config.width) for _ in range(config.depth))

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return the images, then what leaves each halving, the last with the residual blocks."""
        found = [images]
        for layer in self.reduce:
            found.append(F.relu(layer(found[-1])))
        for block in self.residual:
            found[-1] = block(found[-1])
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Compute the last map."""
        return self.maps(images)[-1]


class StridedDecoder(nn.Module):
    """Codes, (B, code width, rows, columns), to (B, outputs, H, W): the encoder's mirror."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        width, entered = config.width, config.width if config.depth else config.code_width
        self.enter = nn.Conv2d(config.code_width, width, 1) if config.depth else None
        self.residual = modules(Residual(width) for _ in range(config.depth))
        inputs = [entered] + [width] * (config.halvings - 1)
        self.enlarge = modules(nn.ConvTranspose2d(each, width, 4, 2, 1) for each in inputs)
        self.leave = nn.Conv2d(width, config.outputs, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Decode embedded codes."""
        if self.enter is not None:
            features = self.enter(features)
        for block in self.residual:
            features = block(features)
        for layer in self.enlarge:
            features = F.relu(layer(features))
        return self.leave(features)
