"""Masked patch prediction: the colors or the pixels of hidden patches."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.encoder.from_patches import gathered, patches_of
from vitlab.models.model import Model
from vitlab.models.packed import from_patches
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.hidden_patches import (
    HiddenPatches,
    check_hidden,
    covered,
    grid_of,
    hidden_count,
)
from vitlab.objectives.masks import Draws, draws_of, random_places, uniform
from vitlab.objectives.pretext_task import LossFigures, as_pictures, unit_pixels
from vitlab.recipes.pretext import Pretext

BINS = 8  # of a channel: 3 bits
CELLS = 4  # per side of a down-sized patch
MASKED, RANDOM = 0.8, 0.1  # of the hidden patches; the others stay as they are
MOST_CHANNELS = 5  # 8^5 colors


class MaskedPatch(HiddenPatches):
    """Masked patch prediction (ViT paper, B.1.2; the 80/10/10 is BERT's, Devlin et al., 2019).

    A share of the patch embeddings is corrupted: each becomes a learned token with probability 0.8,
    another patch's embedding with 0.1, and stays as it is with 0.1. The loss is over these patches:
    cross-entropy of the mean color at 3 bits per channel (512 classes of RGB), the same of each of
    4x4 cells, or the squared error of the pixels, always in [0, 1].

    No code was published. Our choices: weights are drawn as BEiT's; the other patch is of the same
    image, so that an image's loss does not depend on its batch; a channel's bins are equally wide,
    and the class is 64 red + 8 green + blue; 8 classes for gray images and 4,096 for four channels;
    cells of a side that 4 does not divide are means weighted by area.

    The figure `color_error` is the mean absolute error of corrupted patches' mean colors in [0, 1].
    """

    figures: ClassVar[tuple[str, ...]] = ("color_error",)

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        cells = {"mean-color": 1, "downsized": CELLS, "pixels": config.step}[options.target]
        colors = 0 if options.target == "pixels" else BINS**config.channels
        super().__init__(options, config, guide, cells**2 * (colors or config.channels))
        self.cells, self.colors = cells, colors

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse models without patches, and colors that are too many to be classes.

        Raises:
            OptionError: the message says what would work.
        """
        vit = check_hidden(options, config)
        if options.target != "pixels" and vit.channels > MOST_CHANNELS:
            raise OptionError(
                f"target={options.target} has 8^{vit.channels} colors for channels="
                f"{vit.channels}: set target=pixels"
            )
        if options.target == "downsized" and vit.patch < CELLS:
            raise OptionError(
                f"target=downsized needs a patch of at least {CELLS} pixels, not {vit.patch}: set "
                "target=pixels"
            )

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the mean loss of corrupted patches, and the sum of `color_error`."""
        images = batch.images
        assert isinstance(images, Tensor)
        assert isinstance(model, VisionTransformer)
        places, *how = self.draw(images, draws_of(batch, generator))
        patches = self.corrupted(model.stem(images), places, *how)
        found = self._predicted(model, images, patches, places)
        cells = gathered(self.targets(images).flatten(2), places)
        cells = cells.unflatten(2, (images.shape[1], -1))  # (B, K, C, cells)
        if self.colors:
            loss = F.cross_entropy(found.flatten(0, 2), colors_of(cells).flatten())
        else:
            loss = F.mse_loss(found, cells.transpose(2, 3))
        error = self._shown(found.detach()).mean(-1) - cells.mean(-1)
        return loss, {"color_error": error.abs().mean(dim=(1, 2)).sum()}

    def targets(self, images: Tensor) -> Tensor:
        """Return the mean of each cell of each patch in [0, 1].

        Args:
            images: normalized, (B, C, H, W)

        Returns:
            float32 (B, P, C, cells): one cell, 4x4 of them, or every pixel, in raster order.
        """
        pixels = unit_pixels(images, self.config).clamp(0, 1)
        cut = patches_of(pixels, self.config.patch)
        cut = cut.unflatten(2, (images.shape[1], self.config.patch, -1))
        if self.cells == self.config.patch:
            return cut.flatten(3)
        means = averages(self.cells, self.config.patch, images.device)
        return torch.einsum("ai,bj,npcij->npcab", means, means, cut).flatten(3)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # no generator in a graph
    def draw(self, images: Tensor, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        """Draw which patches of images (B, C, H, W) are corrupted, and how.

        Returns:
            Their numbers, int64 (B, K); a number in [0, 1) that decides what happens to each,
            (B, K); and how far on the other patch is that it may become, int64 (B, K).
        """
        rows, columns = grid = grid_of(images, self.config)
        count, patches = hidden_count(self.options.mask_ratio, grid), rows * columns
        places = random_places(len(images), patches, count, draws)
        kind, step = uniform(draws, len(images), 2, count).unbind(1)
        return places, kind, 1 + (step * (patches - 1)).long()

    def corrupted(self, patches: Tensor, places: Tensor, kind: Tensor, step: Tensor) -> Tensor:
        """Return patch tokens, (B, P, D), corrupted as `draw` says."""
        other, kept = (
            gathered(patches, (places + step) % patches.shape[1]),
            gathered(patches, places),
        )
        masked, random = kind < MASKED, (kind >= MASKED) & (kind < MASKED + RANDOM)
        new = torch.where(masked[..., None], self.token.to(patches.dtype), kept)
        new = torch.where(random[..., None], other, new)
        return patches.scatter(1, places[..., None].expand_as(new), new)

    def _predicted(
        self, model: VisionTransformer, images: Tensor, patches: Tensor, places: Tensor
    ) -> Tensor:
        """Return what is predicted of the patches at places: (B, K, cells, colors or C)."""
        found = self.predicted(model, images, patches, places)
        return found.unflatten(2, (self.cells**2, -1))

    def _shown(self, found: Tensor) -> Tensor:
        """Return the likeliest colors, in [0, 1]: (B, K, cells, …) -> (B, K, C, cells)."""
        if not self.colors:
            return found.transpose(2, 3)
        powers = BINS ** torch.arange(self.config.channels, device=found.device).flip(0)
        bins = found.argmax(-1)[:, :, None] // powers[:, None] % BINS
        return (bins + 0.5) / BINS

    @torch.no_grad()
    def pictures(
        self, model: Model, images: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return images, which of their patches are corrupted, and these as they are predicted."""
        assert isinstance(model, VisionTransformer)
        (places, *how), side = self.draw(images, generator), self.config.patch
        patches = self.corrupted(model.stem(images), places, *how)
        cells = self._shown(self._predicted(model, images, patches, places))
        square = cells.unflatten(3, (self.cells, self.cells)).flatten(0, 1)
        colors = F.interpolate(square, (side, side), mode="nearest").flatten(1)
        pixels, grid = unit_pixels(images, self.config), grid_of(images, self.config)
        cut = patches_of(pixels, side)
        colors = colors.unflatten(0, places.shape)
        made = cut.scatter(1, places[..., None].expand_as(colors), colors).flatten(0, 1)
        masks = torch.zeros_like(cut[..., 0], dtype=torch.bool).scatter(1, places, True)
        return {
            "image": as_pictures(pixels),
            "masked": as_pictures(covered(pixels, masks, grid)),
            "predicted": as_pictures(from_patches(made, grid, side)),
        }


def colors_of(cells: Tensor) -> Tensor:
    """Return the color class of each cell: in [0, 1], (…, C, cells) -> int64 (…, cells)."""
    bins = (cells * BINS).long().clamp(max=BINS - 1)
    powers = BINS ** torch.arange(cells.shape[-2], device=cells.device).flip(0)
    return (bins * powers[:, None]).sum(-2)


def averages(cells: int, pixels: int, device: torch.device | None = None) -> Tensor:
    """Return how much each pixel of a row counts in the mean of each cell: (cells, pixels)."""
    edges = torch.arange(cells + 1, device=device) * (pixels / cells)
    first = torch.arange(pixels, device=device)
    overlap = torch.minimum(edges[1:, None], first + 1) - torch.maximum(edges[:-1, None], first)
    return overlap.clamp(min=0) * (cells / pixels)
