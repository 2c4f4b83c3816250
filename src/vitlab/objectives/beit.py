"""BEiT: the codes that a tokenizer gives to hidden patches."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.encoder.from_patches import visible_patches
from vitlab.models.model import Model
from vitlab.models.stems.stem import stem_of
from vitlab.models.tokenizers.tokenizer import Tokenizer
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.hidden_patches import (
    HiddenPatches,
    check_hidden,
    covered,
    grid_of,
    hidden_count,
    over_image,
)
from vitlab.objectives.masks import Draws, block_masks, draws_of, places_of, smallest_block
from vitlab.objectives.pretext_task import LossFigures, as_pictures, unit_pixels
from vitlab.recipes.pretext import Pretext

EASY = 0.9  # agreement from which a tokenizer is doubted: our choice
RIGHT, WRONG = (0.2, 0.75, 0.3), (0.85, 0.2, 0.2)  # green and red


class BEiT(HiddenPatches):
    """BEiT (Bao et al., BERT Pre-Training of Image Transformers, 2021, section 2).

    Blocks of patches are hidden: a learned token takes the place of their embeddings. A linear
    layer on the last tokens predicts the codes that a frozen tokenizer gives to what is hidden, by
    cross-entropy. The tokenizer sees the same crop, in fp32, resized so that it has as many codes
    as the model has patches (112 pixels for 224 with DALL-E's), and normalized in its own way.

    Patches are hidden after the stem, whatever the stem (Three things, section 5). Where a stem
    looks at each patch by itself, that is the same as hiding pixels, and it sees the visible
    patches alone: its batch norm, if it has one, then takes its statistics from these.

    The figure `agreement` is the share of hidden patches whose code is predicted right.
    """

    figures: ClassVar[tuple[str, ...]] = ("agreement",)

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        assert isinstance(guide, Tokenizer)
        super().__init__(options, config, guide, guide.config.codes)

    @property
    def tokenizer(self) -> Tokenizer:
        """The frozen tokenizer."""
        [guide] = self._guide
        assert isinstance(guide, Tokenizer)
        return guide

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse models without patches, and tokenizers whose codes are not of these patches.

        Raises:
            OptionError: the message says what would work.
        """
        vit = check_hidden(options, config)
        count, least = hidden_count(options.mask_ratio, vit.grid), options.min_block
        if least > count:
            raise OptionError(
                f"min_block={least} is more than the {count} patches that are hidden: set "
                f"min_block={min(count, smallest_block(vit.grid))}"
            )
        if guide is None:
            raise OptionError(
                "task=beit predicts the codes of a tokenizer: name its weights with --tokenizer; "
                "`vitlab pretrain DATA --task tokenizer` trains one"
            )
        _check_guide(vit, guide)

    @classmethod
    def remarks(cls, options: Pretext, config: ModelConfig) -> list[str]:
        """Say whether the stem shows hidden patches to visible ones."""
        assert isinstance(config, ViTConfig)
        with torch.device("meta"):
            mixes = stem_of(config)(config).mixes
        if mixes:
            return [
                f"stem={config.stem} mixes neighboring patches: visible tokens know a little of "
                "the hidden ones beside them; stem=linear and stem=hmlp do not"
            ]
        line = f"stem={config.stem} keeps patches apart: it computes the visible ones alone"
        if config.stem_norm == "batch":
            line += ", and its batch norm counts these"
        return [line]

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the cross-entropy of the hidden patches' codes, and the sum of `agreement`."""
        images = batch.images
        assert isinstance(images, Tensor)
        masks, places = self.masks(images, draws_of(batch, generator))
        codes = self.codes(images).gather(1, places)  # (B, K)
        scores = self.scores(model, images, masks, places)
        right = (scores.detach().argmax(-1) == codes).float().mean(1).sum()
        return F.cross_entropy(scores.flatten(0, 1), codes.flatten()), {"agreement": right}

    def warnings(self, means: dict[str, float]) -> list[str]:
        """Tell of codes that are too easy to predict."""
        if means.get("agreement", 0.0) < EASY:
            return []
        return [
            f"{means['agreement']:.0%} of the hidden codes are predicted right: the tokenizer "
            "tells too little apart to learn from; use one with more codes in use"
        ]

    def masks(self, images: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Draw which patches are hidden: (B, P) bool, and their numbers, int64 (B, K)."""
        grid, options = grid_of(images, self.config), self.options
        count = hidden_count(options.mask_ratio, grid)
        masks = block_masks(len(images), grid, count, draws, options.min_block)
        return masks, places_of(masks, count)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def codes(self, images: Tensor) -> Tensor:
        """Return the tokenizer's code of each patch: normalized (B, C, H, W) -> int64 (B, P)."""
        grid, tokenizer = grid_of(images, self.config), self.tokenizer
        channels, stride = tokenizer.config.channels, tokenizer.config.stride
        size = (grid[0] * stride, grid[1] * stride)
        pixels = unit_pixels(images, self.config)
        if size != tuple(images.shape[-2:]):
            pixels = F.interpolate(pixels, size, mode="bicubic", antialias=True).clamp(0, 1)
        with torch.autocast(images.device.type, enabled=False):
            own = tokenizer.normalized(pixels.expand(-1, channels, -1, -1))
            return tokenizer.codes(own).flatten(1)

    def scores(self, model: Model, images: Tensor, masks: Tensor, places: Tensor) -> Tensor:
        """Return the scores of all codes for the hidden patches.

        Args:
            model: a Vision Transformer
            images: normalized, (B, C, H, W)
            masks: true for hidden patches, (B, P)
            places: their numbers, int64 (B, K)

        Returns:
            float32 (B, K, codes).
        """
        assert isinstance(model, VisionTransformer)
        patches = self._hidden(model, images, masks, places.shape[1])
        return self.predicted(model, images, patches, places)

    def _hidden(
        self, model: VisionTransformer, images: Tensor, masks: Tensor, count: int
    ) -> Tensor:
        """Return the patch tokens, (B, P, D), `count` of which are the learned token."""
        if model.stem.mixes:
            patches: Tensor = model.stem(images)
            return torch.where(masks[..., None], self.token.to(patches.dtype), patches)
        total = masks.shape[1]
        seen = places_of(~masks, total - count)
        tokens = visible_patches(model, images, seen)
        blank = self.token.to(tokens.dtype).expand(len(images), total, -1)
        return blank.scatter(1, seen[..., None].expand_as(tokens), tokens)

    @torch.no_grad()
    def pictures(
        self, model: Model, images: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return images, what is visible, which codes are right, and what the tokenizer makes.

        The last column is there if the tokenizer has a decoder: the predicted codes of hidden
        patches and the true ones of the others, decoded.
        """
        masks, places = self.masks(images, generator)
        codes, grid = self.codes(images), grid_of(images, self.config)
        guess = self.scores(model, images, masks, places).argmax(-1)
        pixels = unit_pixels(images, self.config).clamp(0, 1)
        found = codes.scatter(1, places, guess)
        right = over_image(found == codes, grid, self.config.patch)
        hidden = over_image(masks, grid, self.config.patch)
        colors = (torch.tensor(each, device=images.device) for each in (RIGHT, WRONG))
        green, red = (each[:, None, None] for each in colors)
        gray = pixels.mean(1, keepdim=True)
        told = torch.where(hidden, 0.3 * gray + 0.7 * torch.where(right, green, red), gray)
        columns = {
            "image": as_pictures(pixels),
            "masked": as_pictures(covered(pixels, masks, grid)),
            "agreement": as_pictures(told),
        }
        if self.tokenizer.decoder is not None:
            made = self.tokenizer.pixels(self.tokenizer.decode(found.unflatten(1, grid)))
            made = F.interpolate(made, images.shape[-2:], mode="bilinear", antialias=True)
            columns["decoded"] = as_pictures(made)
        return columns


def _check_guide(config: ViTConfig, guide: Model) -> None:
    """Refuse what is no tokenizer, and one whose codes cannot be those of the patches."""
    name = guide.config.name
    if not isinstance(guide, Tokenizer):
        raise OptionError(
            f"tokenizer: {name} gives no codes: use a model of `vitlab pretrain DATA --task "
            "tokenizer`, or DALL-E's encoder"
        )
    channels, stride, patch = guide.config.channels, guide.config.stride, config.patch
    if channels != config.channels and (channels, config.channels) != (3, 1):
        raise OptionError(
            f"tokenizer: {name} is for channels={channels}, but the model has channels="
            f"{config.channels}: use one for these images"
        )
    if stride > patch:
        raise OptionError(
            f"tokenizer: {name} has a code for {stride}x{stride} pixels, but patch={patch}: its "
            f"codes do not match the {math.prod(config.grid)} patches; use a patch of at least "
            f"{stride}, or a tokenizer that reduces images by {patch} or less"
        )
