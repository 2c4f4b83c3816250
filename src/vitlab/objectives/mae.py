"""Masked autoencoders: the pixels of hidden patches, from the visible ones alone."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.encoder.block import Block
from vitlab.models.encoder.from_patches import encode_visible, gathered, patches_of
from vitlab.models.grid import Grid
from vitlab.models.layers import modules, norm_of, reset_xavier
from vitlab.models.model import Model
from vitlab.models.packed import from_patches
from vitlab.models.positions.positions import Positions, scheme_of
from vitlab.models.positions.sincos import sines
from vitlab.models.stems.stem import stem_of
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.hidden_patches import check_patches, check_share
from vitlab.objectives.masks import Draws, draws_of, uniform
from vitlab.objectives.pretext_task import GRAY, LossFigures, PretextTask, as_pictures, unit_pixels
from vitlab.on_device import sent
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
            float32 (B, M, channels P P), the values of a patch in the order of `packed.to_patches`.
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


EPS = 1e-6  # added to a patch's variance


class MAE(PretextTask):
    """Masked autoencoders (He et al., Masked Autoencoders Are Scalable Vision Learners, 2021).

    The encoder computes the visible patches alone; the decoder predicts the pixels of the hidden
    ones. The loss is their mean squared error, of pixels less the patch's mean and divided by its
    deviation (unbiased) with `normalize_pixels`. Each image has as many visible patches as whole
    ones fit into the share that is not hidden (facebookresearch/mae, `random_masking`).

    The figure `pixel_error` is the mean absolute error of hidden pixels in [0, 1]. Normalized
    predictions are brought back by the hidden patch's own mean and deviation, in pictures too: it
    measures texture, then, and not brightness.
    """

    figures: ClassVar[tuple[str, ...]] = ("pixel_error",)

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        super().__init__(options, config, guide)
        assert isinstance(config, ViTConfig)
        self.patch = config.patch
        self.decoder = Decoder(options, config)

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse encoders for which visible patches alone have no meaning, and impossible decoders.

        Raises:
            OptionError: the message says what would work.
        """
        vit = check_patches(options, config)
        _check_encoder(vit)
        _check_decoder(options)
        patches, ratio = math.prod(vit.grid), options.mask_ratio
        check_share(ratio, patches - visible_count(patches, ratio), vit)

    @classmethod
    def remarks(cls, options: Pretext, config: ModelConfig) -> list[str]:
        """Return how much smaller the encoder's input is, and what the task does not train."""
        assert isinstance(config, ViTConfig)
        patches = math.prod(config.grid)
        visible = visible_count(patches, options.mask_ratio)
        remarks = [f"mae: the encoder sees {visible} of {patches} patches"]
        if config.pool == "attention":
            remarks.append("mae does not train the attention pool: it stays as it is")
        return remarks

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the decoder's weights."""
        self.decoder.reset_parameters(generator)

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the mean squared error of hidden patches, and the sum of `pixel_error`.

        Args:
            model: a Vision Transformer
            batch: normalized images, (B, channels, H, W)
            generator: of the masks
        """
        images = batch.images
        assert isinstance(images, Tensor)
        visible, hidden = self.parted(images, draws_of(batch, generator))
        predicted = self.predicted(model, images, visible, hidden)
        pixels = gathered(patches_of(images, self.patch), hidden).float()
        mean, scale = self._moments(pixels)
        errors = predicted - (pixels - mean) / scale
        with torch.no_grad():
            std = sent(torch.tensor(self.config.std), images.device)[:, None]
            unit = (errors.detach() * scale).unflatten(-1, (images.shape[1], -1)) * std
            figure = unit.abs().mean(dim=(1, 2, 3)).sum()
        return errors.square().mean(), {"pixel_error": figure}

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # no generator in a graph
    def parted(self, images: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Draw which patches of each image are visible, int64 (B, K), and which hidden, (B, M)."""
        patches = (images.shape[2] // self.patch) * (images.shape[3] // self.patch)
        noise = uniform(draws, len(images), patches)
        order = noise.to(images.device).argsort(dim=1, stable=True)
        visible = visible_count(patches, self.options.mask_ratio)
        return order[:, :visible], order[:, visible:]

    def predicted(self, model: Model, images: Tensor, visible: Tensor, hidden: Tensor) -> Tensor:
        """Return what the decoder makes of the hidden patches, float32 (B, M, channels P P).

        A last norm that is on what the model pools (`norm_at=pooled`) is applied to each token, as
        MAE's encoder has one in pre-training too.
        """
        assert isinstance(model, VisionTransformer)
        tokens = model.head.norm(encode_visible(model, images, visible))
        grid = model.config.grid_of(images.shape[-2:])
        found: Tensor = self.decoder(tokens, visible, hidden, grid)
        return found

    def _moments(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is subtracted from each patch of (B, M, n), and what then divides it."""
        if not self.options.normalize_pixels:
            return pixels.new_zeros(()), pixels.new_ones(())
        variance, mean = torch.var_mean(pixels, dim=-1, keepdim=True)
        return mean, (variance + EPS).sqrt()

    @torch.no_grad()
    def pictures(
        self, model: Model, images: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return images, their visible patches, and these with the predicted ones beside them."""
        visible, hidden = self.parted(images, generator)
        pixels = patches_of(images, self.patch).float()
        mean, scale = self._moments(gathered(pixels, hidden))
        found = self.predicted(model, images, visible, hidden) * scale + mean
        whole = pixels.scatter(1, hidden[..., None].expand_as(found), found)
        shown = torch.ones_like(pixels[..., :1]).scatter(1, hidden[..., None], 0.0)
        size = images.shape[-2:]
        grid = (size[0] // self.patch, size[1] // self.patch)
        image = unit_pixels(images, self.config)
        keep = from_patches(shown.expand_as(pixels).flatten(0, 1), grid, self.patch)
        made = from_patches(whole.flatten(0, 1), grid, self.patch)
        return {
            "image": as_pictures(image),
            "masked": as_pictures(image * keep + GRAY * (1 - keep)),
            "reconstructed": as_pictures(unit_pixels(made, self.config)),
        }


def visible_count(patches: int, ratio: float) -> int:
    """Return how many patches stay visible: all whole ones of the share that is not hidden."""
    return int(patches * (1 - ratio) + 1e-6)  # 10 * (1 - 0.9) is a little less than 1


def _check_encoder(config: ViTConfig) -> None:
    """Refuse an encoder that some of the patches mean nothing to."""
    with torch.device("meta"):
        mixes = stem_of(config)(config).mixes
    scheme = scheme_of(config)
    inner = scheme.relate is not Positions.relate or config.positions_at != "stem"
    places = f"positions={config.positions}, positions_at={config.positions_at}"
    for wrong, what, instead in (
        (mixes, f"stem={config.stem}", "stem=linear or hmlp"),
        (inner, places, "positions=1d, 2d, sincos or none, and positions_at=stem"),
        (config.attention == "axial", "attention=axial", "attention=global"),
    ):
        if wrong:
            raise OptionError(f"task=mae encodes visible patches alone, without {what}: {instead}")


def _check_decoder(options: Pretext) -> None:
    """Refuse a decoder's width that heads or positions do not divide."""
    width, heads = options.decoder_width, options.decoder_heads
    if width % 4:
        raise OptionError(
            f"decoder_width={width} is not a multiple of 4, which its positions need: "
            f"{max(4, width - width % 4)} is"
        )
    if width % heads:
        near = min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: abs(n - heads))
        raise OptionError(
            f"decoder_heads={heads} does not divide decoder_width={width}: {near} does"
        )
