"""A transformer within every patch."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.encoder.block import Block
from vitlab.models.layers import modules, norm_of, reset_dense, reset_parts
from vitlab.models.stems.stem import Stem


class LocalTransformer(Stem):
    """A small Transformer within every patch, over 4x4 words of its pixels (TNT; Table 7).

    Pixels become words by a 7x7 convolution over the whole image, a patch's sixteen words attend to
    each other, and are mapped to one token. Three things prints this row's cost alone; an inner
    width of D/8, four blocks and four heads meet it (19.1 GMACs for ViT-B/16).
    """

    name = "local"
    undecayed = ("places",)
    DEPTH, HEADS, WORDS = 4, 4, 4

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        inner = config.width // 8
        self.side = config.patch // self.WORDS
        self.pixels = nn.Conv2d(config.channels, inner, 7, self.side, 3)
        self.places = nn.Parameter(torch.empty(1, self.WORDS**2, inner))
        words = ViTConfig(
            width=inner,
            depth=self.DEPTH,
            heads=self.HEADS,
            mlp=4 * inner,
            patch=1,
            image_size=self.WORDS,
            gelu=config.gelu,
            norm=config.norm,
            norm_eps=config.norm_eps,
            pool="mean",
        )
        self.blocks: Sequence[Block] = modules(Block(words) for _ in range(self.DEPTH))
        self.norm_words = norm_of(config, inner)
        self.project = nn.Linear(self.WORDS**2 * inner, config.width)
        self.norm_tokens = norm_of(config)

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse patches that are not four words wide, and widths that four heads cannot share."""
        if config.patch % 4:
            raise OptionError(
                f"stem=local needs a patch that is a multiple of 4, not {config.patch}"
            )
        if config.width % 32:
            raise OptionError(
                f"stem=local needs a width that is a multiple of 32, not {config.width}"
            )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw weights as the encoder's own parts do."""
        reset_dense(self.pixels, generator)
        nn.init.normal_(self.places, std=0.02, generator=generator)
        reset_parts(generator, *self.blocks)
        reset_dense(self.project, generator)
        reset_parts(generator, self.norm_words, self.norm_tokens)

    def forward(self, images: Tensor) -> Tensor:
        """Cut images into patch tokens."""
        (rows, columns), n = self.config.grid_of(images.shape[-2:]), self.WORDS
        words = self.pixels(images)[..., : rows * n, : columns * n]  # (B, c, rows 4, columns 4)
        words = words.unflatten(2, (rows, n)).unflatten(4, (columns, n))
        words = words.permute(0, 2, 4, 3, 5, 1).reshape(-1, n * n, words.shape[1])
        words = words + self.places
        for block in self.blocks:
            words = block(words)
        tokens = self.project(self.norm_words(words).flatten(1))
        return self.norm_tokens(tokens.unflatten(0, (-1, rows * columns)))
