"""Every architectural choice of a model, as one frozen value.

No PyTorch here: a configuration can be read, checked and named without it.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Self, get_args, get_type_hints

from vitlab.errors import UserError

Size = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What any model says of its images and its classes.

    Attributes:
        image_size: rows and columns of the input, in pixels; one number for a square
        channels: image channels (1 gray, 3 RGB, 4 RGBA)
        classes: outputs of the classifier (0: none, the model gives its features)
        zero_head: the classifier starts at zero, as when fine-tuning
        head_bias: what its biases start at: -10 with sigmoid losses over many classes (Google)
        mean: what is subtracted from an image in [0, 1], a number a channel
        std: what it is then divided by, a number a channel
        interpolation: how images are resized to image_size
        crop: share of an image's side that evaluation looks at, from its center
        fit: how an image of another shape is made to fit: its sides are cropped, or it is squashed
        labels: the names of the classes in the order of the outputs, where known
    """

    COUNTS: ClassVar[tuple[str, ...]] = ("channels",)  # at least 1
    SHARES: ClassVar[tuple[str, ...]] = ()  # in [0, 1)

    image_size: Size = 224
    channels: int = 3
    classes: int = 1000
    zero_head: bool = False
    head_bias: float = 0.0
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    crop: float = 1.0
    fit: Literal["crop", "squash"] = "crop"
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every field, and bring it to one form (one mean for all channels, say)."""
        self._check_values()
        self._check_numbers()
        self._normalize()
        self._check_fit()

    @property
    def name(self) -> str:
        """The papers' notation for this shape, `ViT-B/16`."""
        from vitlab.models.names import name_of  # names.py builds on this file

        return name_of(self)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the input, in pixels."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The configuration that `as_dict` wrote; unknown fields are an error."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise UserError(f"unknown model field {unknown[0]!r}: written by a newer version?")
        fixed: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**fixed)

    def _check_numbers(self) -> None:
        for key, least in (*((key, 1) for key in self.COUNTS), ("classes", 0)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"{key} must be a whole number of at least {least}, not {value!r}")
        for key in self.SHARES:
            if not 0 <= getattr(self, key) < 1:
                raise UserError(f"{key} must lie in [0, 1), not {getattr(self, key)!r}")
        size = self.image_size
        pair = (size, size) if isinstance(size, int) else tuple(size)
        if len(pair) != 2 or any(not isinstance(n, int) or n < 1 for n in pair):
            raise UserError(f"image_size must be pixels, as 224 or (224, 320), not {size!r}")
        if not 0 < self.crop <= 1:
            raise UserError(f"crop must lie in (0, 1], not {self.crop!r}")

    def _check_values(self) -> None:
        for key, hint in get_type_hints(type(self)).items():
            value, allowed = getattr(self, key, None), get_args(hint)
            if hint in (bool, bool | None) and not (value is None or isinstance(value, bool)):
                raise UserError(f"{key} must be True or False, not {value!r}")
            if hint is float and not (isinstance(value, int | float) and math.isfinite(value)):
                raise UserError(f"{key} must be a number, not {value!r}")
            if isinstance(hint, type) or not all(isinstance(value, str) for value in allowed):
                continue
            if getattr(self, key) not in allowed:
                choices = ", ".join(allowed)
                raise UserError(f"{key} must be one of {choices}, not {getattr(self, key)!r}")

    def _put(self, key: str, value: object) -> None:
        object.__setattr__(self, key, value)

    def _normalize(self) -> None:
        rows, columns = self.size
        self._put("image_size", rows if rows == columns else (rows, columns))
        self._put("labels", tuple(self.labels))
        for key in ("mean", "std"):
            value = getattr(self, key)
            values = (value,) if isinstance(value, int | float) else tuple(value)
            if len(set(values)) == 1:  # one number for all: as many as there are channels
                values = values[:1] * self.channels
            self._put(key, tuple(float(number) for number in values))

    def _check_fit(self) -> None:
        for key in ("mean", "std"):
            if len(getattr(self, key)) != self.channels:
                raise UserError(f"{key} needs {self.channels} numbers, one a channel")
        if min(self.std) <= 0:
            raise UserError(f"std must be above 0, not {self.std!r}")
        if self.labels and len(self.labels) != self.classes:
            raise UserError(f"labels has {len(self.labels)} names for classes={self.classes}")


@dataclass(frozen=True, kw_only=True)
class ViTConfig(ModelConfig):
    """A Vision Transformer (ViT paper, section 3.1); the defaults are ViT-B/16 as in Table 1.

    Raises `ValueError` with the field, its value and what would work.

    Attributes:
        width: channels of every token (the papers' D)
        depth: encoder blocks (L)
        heads: attention heads in a block; they divide the width
        mlp: hidden units of a block's MLP
        branches: blocks of each kind that run in parallel (Three things, equation 2)
        patch: side in pixels of the square a token stands for (P)
        stem: how patches become tokens: one linear map, hierarchical MLP (Three things), LeViT's
            convolutions, a local transformer, or a ResNet (the hybrids)
        stem_norm: norm in the stem: none, batch, layer
        stem_act: non-linearity behind a linear stem
        stem_bias: a linear stem has a bias (CLIP's has none)
        stages: bottleneck units in each stage of a ResNet stem, (3, 4, 9) in R50+ViT-B/16
        resnet: whose epsilons a ResNet stem has, Google's or timm's
        positions: none, 1d (learned, raster order), 2d (learned rows and columns), relative (1-D
            offsets, as extra attention), bias (a learned number for each 2-D offset and head, as
            in BEiT), rope (rotary, 2-D)
        positions_at: learned positions are added before the encoder (stem), before every block
            from tables of their own (every), or before every block from one table (shared);
            relative and bias ones act in every block, from one table with shared
        resampling: how positions are brought to another image size: bilinear with aligned corners
            (Google), bicubic (DeiT), or antialiased bicubic (timm)
        pre_norm: a LayerNorm between positions and encoder (CLIP)
        class_token: whether there is one (None: where the pool needs it)
        pool: what the classifier sees: class token, mean of the patches, both side by side, the
            whole prefix (class token and registers) side by side, or attention pooling
        norm_at: where the last norm is: on all tokens, on what is pooled (BEiT, MAE), nowhere
        queries: learned queries of attention pooling; with more than one, one output a query
        pre_logits: units of the tanh layer before the classifier (0: no such layer)
        registers: extra learned tokens without positions behind the class token
        layer_scale: initial value of a learned scale on every branch (0: no scale)
        drop_path: stochastic depth, share of samples that skip a branch
        drop_path_ramp: the share grows from 0 in the first block to drop_path in the last
        attention: global, or axial (rows, then columns, each with an MLP)
        dropout: rate after the positions and after every dense layer but q, k, v
        qkv_bias: queries, keys and values have biases
        bias: the other dense layers of a block have biases
        qk_norm: LayerNorm on queries and keys, over each head's channels
        ffn: mlp, or swiglu (its gate and value have mlp units each)
        gelu: exact (erf), Google's tanh approximation, or CLIP's quick x * sigmoid(1.702 x)
        norm_eps: epsilon of every LayerNorm
        rope_base: longest period of rotary positions, as a power base
    """

    COUNTS: ClassVar[tuple[str, ...]] = (
        "channels", "width", "depth", "heads", "mlp", "branches", "patch", "queries",
    )  # fmt: skip
    SHARES: ClassVar[tuple[str, ...]] = ("dropout", "drop_path")

    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp: int = 3072
    branches: int = 1
    patch: int = 16
    stem: Literal["linear", "hmlp", "conv", "local", "resnet"] = "linear"
    stem_norm: Literal["none", "batch", "layer"] = "none"
    stem_act: Literal["none", "gelu"] = "none"
    stem_bias: bool = True
    stages: tuple[int, ...] = ()
    resnet: Literal["google", "timm"] = "google"
    positions: Literal["none", "1d", "2d", "relative", "bias", "rope"] = "1d"
    positions_at: Literal["stem", "every", "shared"] = "stem"
    resampling: Literal["bilinear", "bicubic", "antialiased"] = "bilinear"
    pre_norm: bool = False
    class_token: bool | None = None
    pool: Literal["token", "mean", "both", "prefix", "attention"] = "token"
    norm_at: Literal["tokens", "pooled", "none"] = "tokens"
    queries: int = 1
    pre_logits: int = 0
    registers: int = 0
    layer_scale: float = 0.0
    drop_path: float = 0.0
    drop_path_ramp: bool = False
    attention: Literal["global", "axial"] = "global"
    dropout: float = 0.0
    qkv_bias: bool = True
    bias: bool = True
    qk_norm: bool = False
    ffn: Literal["mlp", "swiglu"] = "mlp"
    gelu: Literal["exact", "tanh", "quick"] = "exact"
    norm_eps: float = 1e-6
    rope_base: float = 100.0

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = self.size
        return rows // self.patch, columns // self.patch

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
    def tokens(self) -> int:
        """Length of the sequence that the encoder sees."""
        return self.prefix + math.prod(self.grid)

    @property
    def placed(self) -> int:
        """Tokens that have a place: class token and patches, not the registers."""
        return self.tokens - self.registers

    @property
    def pooled(self) -> int:
        """Width of what the pool gives."""
        parts = {"both": 2, "prefix": self.prefix}.get(self.pool, 1)
        return parts * self.width

    @property
    def features(self) -> int:
        """Width of what the classifier sees."""
        return self.pre_logits or self.pooled

    @property
    def stride(self) -> int:
        """Pixels a side for each place of a ResNet stem's map: 4 behind its root, then doubled."""
        return 2 ** (max(len(self.stages), 1) + 1)

    def _check_numbers(self) -> None:
        super()._check_numbers()
        if not self.norm_eps > 0:
            raise UserError(f"norm_eps must be above 0, not {self.norm_eps!r}")
        if not self.rope_base > 1:
            raise UserError(f"rope_base must be above 1, not {self.rope_base!r}")
        for key in ("pre_logits", "registers", "layer_scale"):
            if getattr(self, key) < 0:
                raise UserError(f"{key} must be 0 or more, not {getattr(self, key)!r}")
        if any(not isinstance(n, int) or n < 1 for n in self.stages):
            raise UserError(f"stages must be numbers of units, as (3, 4, 9), not {self.stages!r}")

    def _normalize(self) -> None:
        super()._normalize()
        self._put("pre_logits", self.width if self.pre_logits is True else int(self.pre_logits))
        self._put("stages", tuple(self.stages))

    def _check_fit(self) -> None:
        super()._check_fit()
        if self.width % self.heads:
            near = [n for n in range(1, self.width + 1) if self.width % n == 0]
            near = sorted(sorted(near, key=lambda n: abs(n - self.heads))[:2])
            raise UserError(
                f"heads={self.heads} does not divide width={self.width}: "
                f"{' or '.join(map(str, near))} would"
            )
        if any(side % self.patch for side in self.size):
            fits = [sorted({max(1, n // self.patch), n // self.patch + 1}) for n in self.size]
            sizes = [" or ".join(str(k * self.patch) for k in side) for side in fits]
            fit = sizes[0] if sizes[0] == sizes[1] else f"({sizes[0]}, {sizes[1]})"
            raise UserError(
                f"image_size={self.image_size} is not a multiple of patch={self.patch}: {fit} fits"
            )
        self._check_stem()
        self._check_positions()
        self._check_pool()

    def _check_stem(self) -> None:
        """What each stem can be cut to."""
        doublings = math.log2(self.patch)
        if self.stem == "hmlp" and not (doublings.is_integer() and self.patch >= 8):
            raise UserError(f"stem=hmlp needs patch=8, 16, 32, … (4, doubled), not {self.patch}")
        if self.stem == "conv" and not (doublings.is_integer() and self.patch >= 2):
            raise UserError(f"stem=conv needs a patch that is a power of 2, not {self.patch}")
        if self.stem == "local" and self.patch % 4:
            raise UserError(f"stem=local needs a patch that 4 divides, not {self.patch}")
        parts = {"hmlp": 4, "conv": self.patch // 2, "local": 32}.get(self.stem, 1)
        if self.width % parts:
            raise UserError(
                f"stem={self.stem} needs a width that {parts} divides, not {self.width}"
            )
        if self.stem != "resnet" and self.stages:
            raise UserError(f"stages={self.stages} is for stem=resnet, not {self.stem}")
        if self.stem == "resnet" and self.patch % self.stride:
            raise UserError(
                f"stages={self.stages} gives a map of 1/{self.stride}, on which patch={self.patch} "
                f"cannot be cut: patch={self.stride} would work"
            )
        if self.stem in ("local", "resnet") and self.stem_norm != "none":
            raise UserError(f"stem_norm={self.stem_norm} is for linear, hmlp and conv stems")
        if self.stem != "linear" and self.stem_act != "none":
            raise UserError(f"stem_act={self.stem_act} is for stem=linear; others have their own")
        if self.stem != "resnet" and self.resnet != "google":
            raise UserError(f"resnet={self.resnet} is for stem=resnet, not {self.stem}")
        if self.stem != "linear" and not self.stem_bias:
            raise UserError(f"stem_bias=False is for stem=linear, not {self.stem}")

    def _check_positions(self) -> None:
        head = self.width // self.heads
        if self.positions == "rope" and head % 4:
            raise UserError(f"positions=rope needs 4 to divide the head width, not {head}")
        if self.positions == "2d" and self.width % 2:
            raise UserError(f"positions=2d needs an even width, not {self.width}")
        if self.positions in ("none", "rope") and self.positions_at != "stem":
            raise UserError(f"positions_at={self.positions_at} has no meaning for {self.positions}")
        if self.positions == "bias" and self.positions_at == "every":
            raise UserError("positions=bias acts in every block: positions_at=stem or shared")
        if self.positions == "bias" and self.registers:
            raise UserError("positions=bias has no offset for registers: registers=0 would work")
        if self.attention == "axial" and self.positions in ("relative", "bias", "rope"):
            raise UserError(
                f"attention=axial goes with positions=none, 1d or 2d, not {self.positions}: its "
                "rows and columns are no 1-D sequence of all patches"
            )

    def _check_pool(self) -> None:
        if self.queries > 1 and self.pool != "attention":
            raise UserError(f"queries={self.queries} is for pool=attention, not {self.pool}")
        if self.pool in ("token", "both") and not self.has_token:
            raise UserError(f"pool={self.pool} needs a class token: class_token=True would work")
        if self.pool == "prefix" and not self.prefix:
            raise UserError("pool=prefix needs a class token or registers")
        if self.norm_at == "pooled" and self.pool not in ("token", "mean"):
            raise UserError(f"norm_at=pooled goes with pool=token or mean, not {self.pool}")
        if self.attention == "axial" and self.prefix:
            what = f"registers={self.registers}" if self.registers else "a class token"
            if self.pool == "token" and not self.registers:
                what = "pool=token"
            raise UserError(
                f"attention=axial has no row or column for the extra tokens of {what}: "
                "pool=mean and registers=0 would work"
            )


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(ModelConfig):
    """A ResNet of the ViT paper: BiT-R50x1 and its like, or the Axial ResNet (appendix D.6).

    Raises `ValueError` with the field, its value and what would work.

    Attributes:
        stages: bottleneck units in each stage
        widen: factor on every width
        attention: none (BiT: GroupNorm, standardized convolutions, pre-activation), or axial
    """

    COUNTS: ClassVar[tuple[str, ...]] = (*ModelConfig.COUNTS, "widen")

    stages: tuple[int, ...] = (3, 4, 6, 3)
    widen: int = 1
    attention: Literal["none", "axial"] = "none"

    @property
    def features(self) -> int:
        """Width of what the classifier sees."""
        return 2 ** (len(self.stages) - 1) * 256 * self.widen

    @property
    def stride(self) -> int:
        """Pixels a side for each place of the last map."""
        return 2 ** (len(self.stages) + 1)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the last map."""
        rows, columns = self.size
        return -(-rows // self.stride), -(-columns // self.stride)

    def _check_fit(self) -> None:
        super()._check_fit()
        stages = tuple(self.stages)
        self._put("stages", stages)
        if not stages or any(not isinstance(n, int) or n < 1 for n in stages):
            raise UserError(f"stages must be numbers of units, as (3, 4, 6, 3), not {stages!r}")
        if self.attention == "axial" and self.widen != 1:
            raise UserError(f"widen={self.widen} is for BiT ResNets: an Axial ResNet has widen=1")
        if self.attention == "axial" and any(side % self.stride for side in self.size):
            raise UserError(f"image_size={self.image_size}: an Axial ResNet needs {self.stride}·n")
