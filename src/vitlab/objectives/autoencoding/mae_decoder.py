"""The decoder of masked autoencoders."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from vitlab.models.config import ViTConfig
from vitlab.models.encoder.block import Block
from vitlab.models.encoder.from_patches import gathered
from vitlab.models.layers import modules, norm_of, reset_xavier
from vitlab.models.packed import Grid
from vitlab.models.positions.sincos import sines
from vitlab.recipes.pretext import Pretext


class Decoder(nn.Module):
    """A small Vision Transformer from the tokens of visible patches to the pixels of hidden ones.

    Class token and registers come along. Positions are fixed sines and cosines; the kind of norm,
    its epsilon and the form of GELU are the encoder's, all else is a plain block's, with an MLP
    four times as wide (He et al., 2021, section 3 and A.1; facebookresearch/mae, models_mae.py).

    Args:
        options: width, depth and heads
        config: of the encoder
    """

    undecayed: ClassVar[tuple[str, ...]] = ("hidden",)
    places: Tensor

    def __init__(self, options: Pretext, config: ViTConfig) -> None:
        super().__init__()
        width = options.decoder_width
        plain = ViTConfig(
            width=width,
            depth=options.decoder_depth,
            heads=options.decoder_heads,
            mlp=4 * width,
            norm=config.norm,
            norm_eps=config.norm_eps,
            gelu=config.gelu,
        )
        self.grid, self.prefix, self.config = config.grid, config.prefix, plain
        self.embed = nn.Linear(config.width, width)
        self.hidden = nn.Parameter(torch.empty(1, 1, width))
        self.register_buffer("places", sines(config.grid, width))
        self.blocks = modules(Block(plain) for _ in range(options.decoder_depth))
        self.norm = norm_of(plain)
        self.predict = nn.Linear(width, config.patch**2 * config.channels)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw as MAE's code: Xavier-uniform kernels, zero biases, the hidden token of 0.02.

        Biases within MLPs have a deviation of 1e-6, as in the encoder; queries, keys and values are
        drawn as one matrix in MAE's code, each by itself here.
        """
        nn.init.normal_(self.hidden, std=0.02, generator=generator)
        for block in self.blocks:
            block.reset_parameters(generator)
        reset_xavier([(self.embed, 1), (self.predict, 1)], generator)
        self.norm.reset_parameters()

    def forward(self, tokens: Tensor, visible: Tensor, hidden: Tensor, grid: Grid) -> Tensor:
        """Predict hidden patches.

        Args:
            tokens: of the encoder, (B, prefix + K, D)
            visible: numbers of their patches, int64 (B, K)
            hidden: numbers of the patches to predict, int64 (B, M)
            grid: of all patches

        Returns:
            float32 (B, M, channels P P), the values of a patch in the order of `to_patches`.
        """
        known = self.embed(tokens)
        places = self.places if grid == self.grid else sines(grid, known.shape[-1], known.device)
        blank = self.hidden.to(known.dtype).expand(len(known), len(places), -1)
        numbers = visible[..., None].expand(-1, -1, known.shape[-1])
        patches = blank.scatter(1, numbers, known[:, self.prefix :]) + places
        whole = torch.cat([known[:, : self.prefix].to(patches.dtype), patches], dim=1)
        for block in self.blocks:
            whole = block(whole)
        found = gathered(whole[:, self.prefix :], hidden)
        predicted: Tensor = self.predict(self.norm(found))
        return predicted.float()
