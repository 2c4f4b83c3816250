"""Tubelets: blocks of several frames as tokens (ViViT)."""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.configs.vit_config import COLORS, ViTConfig
from vitlab.models.model import Model
from vitlab.models.stems.stem import Convolutions

M = TypeVar("M", bound=Model)


class Tubelet(Convolutions):
    """One linear map of every block of `stem_frames` frames and a patch of pixels.

    A clip of T frames is an image of 3 T channels, the colors of its first frame first. Tokens are
    in order of time, then in raster order; all of them attend to each other. Their grid is that of
    the blocks of frames below one another. Source: Arnab et al., ViViT, 2021, section 3.2 (tubelet
    embedding) and 3.3 (model 1).
    """

    name = "tubelet"

    def __init__(self, config: ViTConfig) -> None:
        channels, patch = COLORS * config.stem_frames, config.patch
        super().__init__(
            config, [nn.Conv2d(channels, config.width, patch, patch, bias=config.stem_bias)]
        )

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse frames that make no whole blocks, and places in a grid that has no time."""
        whole = COLORS * config.stem_frames
        if config.channels % whole:
            raise OptionError(
                f"stem=tubelet needs channels that are a multiple of {whole}, three for each of "
                f"stem_frames={config.stem_frames}, not {config.channels}"
            )
        placed = config.attention == "global" and config.positions in ("1d", "none")
        if config.times > 1 and not placed:
            raise OptionError("stem=tubelet needs positions=1d or none, and attention among all")
        if config.fit == "native" or config.positions_size:
            raise OptionError("stem=tubelet takes clips of one image_size: keep it, and fit=crop")

    def forward(self, images: Tensor) -> Tensor:
        """Cut clips into tokens: (B, T 3, H, W) -> (B, times rows columns, D)."""
        blocks = images.unflatten(1, (self.config.times, -1)).flatten(0, 1)
        return super().forward(blocks).unflatten(0, (-1, self.config.times)).flatten(1, 2)


def over_frames(model: M, frames: int, tubelet: int = 2) -> M:
    """Return a model of clips that starts as a model of images.

    The kernel of the middle frame of each tubelet is that of the image, and those of the others are
    zero; positions are repeated in time (ViViT, section 3.4, central frame initialization). On a
    still clip, its output is that of the image, within rounding (1e-5 in fp32), where one tubelet
    is as long as the clip, or where there are no tokens beside the patches: several tubelets take a
    larger share of a class token's attention. Other weights share their memory with the model.

    Args:
        model: a Vision Transformer of RGB images with a linear stem and 1-D positions
        frames: of a clip; `channels` of the new model is three times that
        tubelet: frames of each token; it must divide `frames`

    Raises:
        OptionError: the message says what would work.
    """
    config = model.config
    refusal = OptionError(
        "over_frames needs a Vision Transformer of RGB images at its own image_size, with a linear "
        f"stem, not {config.name}"
    )
    if not isinstance(config, ViTConfig) or config.positions_size:
        raise refusal
    if (config.stem, config.channels) != ("linear", COLORS):
        raise refusal
    new = replace(
        config, stem="tubelet", stem_frames=tubelet, channels=COLORS * frames,
        mean=config.mean * frames, std=config.std * frames,
    )  # fmt: skip
    tensors, prefix = dict(model.state_dict()), config.placed - config.grid[0] * config.grid[1]
    kernel = tensors["stem.layers.0.weight"]
    wide = kernel.new_zeros(len(kernel), tubelet, *kernel.shape[1:])
    wide[:, tubelet // 2] = kernel
    tensors["stem.layers.0.weight"] = wide.flatten(1, 2)
    for name, table in tensors.items():
        if name.startswith("positions.") and new.times > 1:
            first, rest = table[:, :prefix], table[:, prefix:]
            tensors[name] = torch.cat([first, rest.repeat(1, new.times, 1)], dim=1)
    with torch.device("meta"):
        made = type(model)(new)
    if made.state_dict().keys() != tensors.keys():  # fused
        raise refusal
    made.take(tensors)
    made.provenance, made.source, made.seen = dict(model.provenance), model.source, model.seen
    return made.train(model.training)
