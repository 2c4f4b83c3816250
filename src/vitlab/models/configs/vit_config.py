"""Every architectural choice of a Vision Transformer, as one frozen value: one line a choice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from vitlab.errors import OptionError
from vitlab.images import Size
from vitlab.models.configs.model_config import (
    MOST_BLOCKS,
    ModelConfig,
    check_parameters,
    check_stages,
)
from vitlab.models.grid import check_multiple
from vitlab.models.names import vit_name
from vitlab.models.registry import kind_named, used_options, where_used
from vitlab.options import above, at_least, below, option, when

COLORS = 3  # channels of a frame
# How learned positions are resized; `vitlab.models.positions.learned` does it.
Resampling = Literal[
    "bilinear", "bicubic", "antialiased", "scaled", "bilinear-antialiased",
    "bilinear-unaligned", "nearest",
]  # fmt: skip
# Numbers that no model has; a hostile file may state them, and they would be built.
MOST = {
    "width": 2**17, "registers": 2**16, "queries": 2**16, "stem_frames": 2**10, "rope_grid": 2**16,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ViTConfig(ModelConfig):
    """A Vision Transformer (ViT paper, section 3.1); the defaults are ViT-B/16 as in Table 1.

    Raises:
        OptionError: a value or combination that is not possible; the message says what would work.
    """

    kind: ClassVar[str] = "vit"

    width: int = option(768, "channels of every token (the papers' D)", at_least(1))
    depth: int = option(12, "encoder blocks (L)", at_least(1))
    heads: int = option(12, "attention heads per block; they must divide the width", at_least(1))
    mlp: int = option(3072, "hidden units of each MLP", at_least(1))
    branches: int = option(
        1, "blocks of each kind that run in parallel (Three things, equation 2)", at_least(1)
    )
    patch: int = option(16, "side in pixels of the square that becomes a token (P)", at_least(1))
    stem: str = option(
        "linear",
        "how patches become tokens: one linear map, hierarchical MLP (Three things), LeViT's "
        "convolutions, a local transformer, a ResNet (the hybrids), or blocks of frames (ViViT)",
        choices=lambda: used_options("stem"),
    )
    stem_norm: Literal["none", "batch", "layer"] = option(
        "none",
        "norm in the stem (a model by its name that is given stem=hmlp or conv alone has batch, as "
        "in Three things)",
        only=where_used("stem", "stem_norm"),
    )
    stem_act: Literal["none", "gelu"] = option(
        "none", "activation after a linear stem", only=where_used("stem", "stem_act")
    )
    stem_bias: bool = option(
        True,
        "give the stem's linear map a bias (CLIP's has none)",
        only=where_used("stem", "stem_bias"),
    )
    stem_stride: int = option(
        0,
        "pixels from one patch to the next, fewer than patch where they overlap (AST has 10; what "
        "remains of an image is unused; 0: patch, which divides the image)",
        at_least(0),
        only=where_used("stem", "stem_stride"),
    )
    stem_frames: int = option(
        2,
        "frames of each tubelet; an image is a clip, with three channels for each frame",
        at_least(1),
        only=where_used("stem", "stem_frames"),
    )
    stages: tuple[int, ...] = option(
        (),
        "bottleneck units per stage of a ResNet stem, (3, 4, 9) in R50+ViT-B/16",
        at_least(1),
        only=where_used("stem", "stages"),
    )
    resnet: Literal["google", "timm"] = option(
        "google", "whose epsilons a ResNet stem has", only=where_used("stem", "resnet")
    )
    positions: str = option(
        "1d",
        "none; 1d: learned, in raster order; 2d: learned rows and columns; relative: 1-D offsets "
        "as extra attention; bias: a learned bias per 2-D offset and head (BEiT); rope: rotary; "
        "sincos: fixed sines and cosines of rows and columns (MAE); 1d+bias, 1d+rope: both",
        choices=lambda: used_options("positions"),
    )
    positions_at: Literal["stem", "every", "shared"] = option(
        "stem",
        "where positions act: before the encoder (stem), in every block with its own table "
        "(every), or in every block with one table (shared); relative and bias act in every "
        "block in any case, with its own table unless shared",
        only=where_used("positions", "positions_at"),
    )
    bias_locality: float = option(
        0.0,
        "start the biases of positions=bias so that each head sees one neighbor of a patch, as in "
        "ConViT: minus this times the squared distance from it, in patches (0: start at zero)",
        at_least(0),
        only=where_used("positions", "bias_locality"),
    )
    positions_size: Size | None = option(
        None,
        "rows and columns in pixels of the images that stored positions are for, if not "
        "image_size: they are resampled in the forward pass",
        at_least(1),
        only=where_used("positions", "positions_size"),
    )
    # A fact about released weights, stated by their readers with or without learned positions.
    resampling: Resampling = option(
        "bilinear",
        "how learned positions are resized to another image size: bilinear with aligned corners "
        "(Google), bicubic (DeiT), antialiased bicubic (timm), bicubic by DINOv2's factor, or "
        "bilinear without aligned corners, with antialiasing (SigLIP 2 NaFlex) or without "
        "(Perception Encoder), or the nearest one (Idefics3)",
    )
    norm: Literal["layer", "rms"] = option(
        "layer", "kind of every norm: LayerNorm, or RMSNorm, which has no mean and no shift (AIMv2)"
    )
    norm_order: Literal["before", "after"] = option(
        "before",
        "where a block's norms are: before attention and MLP, or after each of them, on what is "
        "added to the tokens (EVA-02-CLIP's largest)",
    )
    norm_inner_attention: bool = option(
        False, "put a norm before the last layer of attention (BEiT-3, EVA-02-CLIP)"
    )
    norm_inner_mlp: bool = option(
        False, "put a norm before the last layer of each MLP (BEiT-3, EVA-02)"
    )
    pre_norm: bool = option(False, "put a norm between positions and encoder (CLIP)")
    class_token: bool | None = option(None, "have a class token (None: if the pool needs one)")
    pool: Literal["token", "mean", "both", "prefix", "prefix-mean", "attention"] = option(
        "token",
        "what the classifier sees: the class token, the mean of the patches, both side by side, "
        "class token and registers side by side (prefix) or their mean, or attention pooling",
    )
    norm_at: Literal["tokens", "pooled", "both", "none"] = option(
        "tokens",
        "where the last norm is: on all tokens, on the pooled ones (BEiT, MAE), or on both (AST)",
    )
    queries: int = option(
        1,
        "learned queries of attention pooling; several give one output each",
        at_least(1),
        only=when("pool", "attention"),
    )
    pool_heads: int = option(
        0,
        "heads of attention pooling (0: those of the encoder); they must divide the width",
        at_least(0),
        only=when("pool", "attention"),
    )
    pool_mlp: int = option(
        0,
        "hidden units of the MLP of attention pooling (0: mlp)",
        at_least(0),
        only=when("pool", "attention"),
    )
    pool_prefix: bool = option(
        False,
        "pool class token and registers together with the patches",
        only=when("pool", "mean", "attention"),
    )
    pool_tokens: tuple[int, ...] = option(
        (),
        "numbers, from 0, of the tokens before the patches that pool=prefix sees (none: all of "
        "them)",
        at_least(0),
        only=when("pool", "prefix"),
    )
    pre_logits: int | Literal[True] = option(
        0,
        "units of the tanh layer before the classifier (0: no such layer; True: the width)",
        at_least(0),
    )
    registers: int = option(
        0, "extra learned tokens after the class token, without positions", at_least(0)
    )
    layer_scale: float = option(
        0.0, "initial value of a learned scale on every branch (0: no scale)", at_least(0)
    )
    drop_path: float = option(
        0.0, "stochastic depth: share of samples that skip a branch", at_least(0), below(1)
    )
    drop_path_ramp: bool = option(
        False,
        "grow drop_path from 0 in the first block to its value in the last",
        only=when("drop_path"),
    )
    attention: Literal["global", "axial"] = option(
        "global", "what a token attends to: all, or its row, then its column, each with an MLP"
    )
    dropout: float = option(
        0.0, "rate after positions and all dense layers but q, k and v", at_least(0), below(1)
    )
    qkv_bias: bool = option(True, "give queries, keys and values biases")
    bias: bool = option(True, "give the other dense layers of a block biases")
    qk_norm: bool = option(False, "put a norm on queries and keys, over each head's channels")
    ffn: Literal["mlp", "swiglu"] = option(
        "mlp", "form of the MLP; the gate and value of swiglu have mlp units each"
    )
    # As resampling, a fact about released weights.
    gelu: Literal["exact", "tanh", "quick"] = option(
        "exact", "GELU: exact (erf), Google's tanh form, or CLIP's x * sigmoid(1.702 x)"
    )
    norm_eps: float = option(1e-6, "epsilon of every norm", above(0))
    rope_kind: Literal["image", "grid"] = option(
        "image",
        "what rotary positions turn by: coordinates from -1 to 1 over the image (DINOv3), numbers "
        "of rows and columns (EVA-02, Perception Encoder, RoPE-ViT)",
        only=where_used("positions", "rope_kind"),
    )
    rope_base: float = option(
        100.0,
        "longest period of rotary positions, as a power base",
        above(1),
        only=where_used("positions", "rope_base"),
    )
    rope_rounded: bool = option(
        False,
        "round the periods of rotary positions to bfloat16, as DINOv3's own files store them",
        only=when("rope_kind", "image"),
    )
    rope_grid: int = option(
        0,
        "rows and columns of the grid that numbers are scaled to, so that another image size has "
        "the same range of them (0: not scaled)",
        at_least(0),
        only=when("rope_kind", "grid"),
    )
    rope_offset: float = option(
        0.0, "number of the first row and column", only=when("rope_kind", "grid")
    )

    def __post_init__(self) -> None:
        """Check every field by itself, then together."""
        super().__post_init__()
        if self.pre_logits is True:
            object.__setattr__(self, "pre_logits", self.width)
        self._check_extent()
        self._check_heads()
        self._check_pool()
        self.check_size(self.size)
        if self.positions_size is not None and self.at_positions.grid == self.grid:
            object.__setattr__(self, "positions_size", None)
        for field, value in (("stem", self.stem), ("positions", self.positions)):
            kind_named(field, value).check(self)

    def _check_extent(self) -> None:
        """Refuse a model of more blocks or parameters than could be built."""
        for name, most in MOST.items():
            if (value := getattr(self, name)) > most:
                raise OptionError(f"{name} must be at most {most:,}, not {value:,}")
        blocks = self.depth * self.branches
        if blocks > MOST_BLOCKS:
            raise OptionError(
                f"depth={self.depth} and branches={self.branches} make {blocks:,} blocks; at most "
                f"{MOST_BLOCKS:,} are supported"
            )
        check_stages(self.stages)
        rows = 4 * self.width + 2 * self.mlp  # of every block's layers
        pixels = self.patch**2 * self.channels
        outputs = self.classes + (self.pre_logits or 0) + 2 * self.pool_mlp
        tokens = math.prod(self.grid) + self.registers + self.queries
        check_parameters(self.width * (blocks * rows + pixels + outputs + tokens))

    def _check_heads(self) -> None:
        """Refuse heads that do not divide the width."""
        for name, heads in (("heads", self.heads), ("pool_heads", self.pool_heads or self.heads)):
            if self.width % heads:
                near = [n for n in range(1, self.width + 1) if self.width % n == 0]
                near = sorted(sorted(near, key=lambda n: abs(n - heads))[:2])
                raise OptionError(
                    f"{name}={heads} does not divide width={self.width}: "
                    f"{' or '.join(map(str, near))} would"
                )

    def _check_pool(self) -> None:
        """Refuse a pool without the tokens that it needs."""
        if self.pool in ("token", "both") and not self.has_token:
            raise OptionError(f"pool={self.pool} needs a class token: set class_token=True")
        if self.pool.startswith("prefix") and not self.prefix:
            raise OptionError(
                f"pool={self.pool} needs a class token or registers: set class_token=True or "
                "registers=4"
            )
        if any(number >= self.prefix for number in self.pool_tokens):
            raise OptionError(
                f"pool_tokens={self.pool_tokens} has a number above {self.prefix - 1}, that of the "
                "last token before the patches: they are counted from 0"
            )
        alone = self.pool in ("token", "mean", "prefix-mean")
        if self.norm_at in ("pooled", "both") and not alone:
            raise OptionError(f"norm_at={self.norm_at} needs pool=token or mean, not {self.pool}")
        if self.attention == "axial" and self.prefix:
            what = f"registers={self.registers}" if self.registers else "a class token"
            if self.pool == "token" and not self.registers:
                what = "pool=token"
            raise OptionError(
                f"attention=axial has no row or column for the extra tokens of {what}: "
                "set pool=mean and registers=0"
            )

    @property
    def name(self) -> str:
        """The papers' notation for this shape, `ViT-B/16`; `config_of` reads it."""
        return vit_name(
            self.width,
            self.depth,
            self.heads,
            self.mlp,
            self.branches,
            self.patch,
            axial=self.attention == "axial",
            hybrid=self.stages if self.stem == "resnet" else None,
        )

    def sized(self, image_size: Size) -> Self:
        """Return the same for another image size, with the positions that are stored."""
        stored = "positions_size" in used_options("positions")[self.positions]
        size = self.at_positions.image_size if stored else None
        return replace(self, image_size=image_size, positions_size=size)

    @property
    def settled(self) -> Self:
        """The same with positions stored for its own image size."""
        return replace(self, positions_size=None)

    @property
    def at_positions(self) -> Self:
        """The same for images of the size that stored positions are for."""
        return replace(self.settled, image_size=self.positions_size or self.image_size)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.grid_of(self.size)

    def grid_of(self, size: Sequence[int]) -> tuple[int, int]:
        """Return rows and columns of patches of an image, given its size in pixels."""
        rows, columns = size
        if step := self.stem_stride:
            return (rows - self.patch) // step + 1, (columns - self.patch) // step + 1
        return rows // self.patch * self.times, columns // self.patch

    def size_of(self, grid: Sequence[int]) -> tuple[int, int]:
        """Return the smallest size in pixels of an image with so many rows and columns."""
        step = self.stem_stride or self.patch
        rows, columns = (self.patch + (count - 1) * step for count in grid)
        return rows // self.times, columns

    @property
    def times(self) -> int:
        """Tubelets one after the other in time; 1 for an image."""
        return self.channels // (COLORS * self.stem_frames) if self.stem == "tubelet" else 1

    @property
    def tiled(self) -> bool:
        """Whether the patches lie side by side, in one image."""
        return not self.stem_stride and self.stem != "tubelet"

    def check_size(self, size: tuple[int, int]) -> None:
        """Refuse images of a size that the patch does not divide, or smaller than a patch."""
        if self.times > 1 and size != self.size:
            raise OptionError(f"clips of {size} pixels have no positions: {self.size} have")
        if not self.stem_stride:
            check_multiple(size, self.patch, f"patch={self.patch}")
        elif min(size) < self.patch:
            raise OptionError(f"images of {size} pixels are smaller than patch={self.patch}")

    @property
    def step(self) -> int:
        """What the sides of every image are multiples of: the patch."""
        return self.patch

    def check_packed(self, channels: int, patch: int) -> None:
        """Refuse patches of another size, or of another number of channels."""
        if not self.tiled:
            super().check_packed(channels, patch)
        if (channels, patch) != (self.channels, self.patch):
            raise OptionError(
                f"packed images have channels={channels} and patch={patch}, but {self.name} has "
                f"channels={self.channels} and patch={self.patch}: pack them so"
            )

    @property
    def blocks(self) -> int:
        """Number of encoder blocks; axial attention has two per layer."""
        return self.depth * (2 if self.attention == "axial" else 1)

    def layer_width(self, layer: int) -> int:
        """Return the width of what leaves a block."""
        return self.width if 1 <= layer <= self.blocks else 0

    @property
    def answers(self) -> int:
        """Outputs per image: 1, or as many as attention pooling has queries."""
        return self.queries

    def with_classes(self, classes: int) -> Self:
        """Return the same for a new classifier, without the tanh layer before it."""
        return replace(super().with_classes(classes), pre_logits=0)

    @property
    def has_token(self) -> bool:
        """Whether there is a class token."""
        if self.class_token is None:
            return self.pool in ("token", "both")
        return self.class_token

    @property
    def prefix(self) -> int:
        """Tokens before the patches: class token and registers."""
        return int(self.has_token) + self.registers

    @property
    def length(self) -> int:
        """Length of the sequence that the blocks see."""
        return self.prefix + math.prod(self.grid)

    @property
    def placed(self) -> int:
        """Tokens that have a position: class token and patches, not the registers."""
        return self.length - self.registers

    @property
    def pooled(self) -> int:
        """Width of the pool's output."""
        parts = {"both": 2, "prefix": len(self.pool_tokens) or self.prefix}.get(self.pool, 1)
        return parts * self.width

    @property
    def features(self) -> int:
        """Width of the classifier's input."""
        return self.pre_logits or self.pooled
