"""Every architectural choice of a Vision Transformer, as one frozen value.

No PyTorch here: a configuration can be read, checked and named without it.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from vitlab.errors import UserError

Size = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer (ViT paper, section 3.1); the defaults are ViT-B/16 as in Table 1.

    Raises `ValueError` with the field, its value and what would work.

    Attributes:
        width: channels of every token (the papers' D)
        depth: encoder blocks (L)
        heads: attention heads in a block; they divide the width
        mlp: hidden units of a block's MLP
        branches: blocks of each kind that run in parallel (Three things, equation 2)
        patch: side of a patch in pixels (P)
        image_size: rows and columns of the input, in pixels; one number for a square
        channels: image channels (1 grey, 3 RGB, 4 RGBA)
        classes: outputs of the classifier
        stem: how patches become tokens: one linear map, as in the ViT paper
        positions: learned embedding of each place in raster order, or none
        pool: what the classifier sees: the class token, or the mean of all tokens
        pre_logits: units of the tanh layer before the classifier (0: no such layer)
        dropout: rate after the positions and after every dense layer but q, k, v
        qkv_bias: queries, keys and values have biases
        gelu: exact (erf), or Google's tanh approximation
        norm_eps: epsilon of every LayerNorm
        zero_head: the classifier starts at zero, as when fine-tuning
        mean: what is subtracted from an image in [0, 1], a number a channel
        std: what it is then divided by, a number a channel
        interpolation: how images are resized to image_size
        crop: share of an image's side that evaluation looks at, from its centre
        labels: the names of the classes in the order of the outputs, where known
    """

    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp: int = 3072
    branches: int = 1
    patch: int = 16
    image_size: Size = 224
    channels: int = 3
    classes: int = 1000
    stem: Literal["linear"] = "linear"
    positions: Literal["1d", "none"] = "1d"
    pool: Literal["token", "mean"] = "token"
    pre_logits: int = 0
    dropout: float = 0.0
    qkv_bias: bool = True
    gelu: Literal["exact", "tanh"] = "exact"
    norm_eps: float = 1e-6
    zero_head: bool = False
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    crop: float = 1.0
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Bring fields to one form (a square size to one number, one mean for all channels)."""
        self._check_numbers()
        self._check_values()
        self._normalise()
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

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = self.size
        return rows // self.patch, columns // self.patch

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, where there is one."""
        return int(self.pool == "token")

    @property
    def tokens(self) -> int:
        """Length of the sequence that the encoder sees."""
        return self.prefix + math.prod(self.grid)

    @property
    def features(self) -> int:
        """Width of what the classifier sees."""
        return self.pre_logits or self.width

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ViTConfig":
        """The configuration that `as_dict` wrote; unknown fields are an error."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise UserError(f"unknown model field {unknown[0]!r}: written by a newer version?")
        fixed: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**fixed)

    def _check_numbers(self) -> None:
        for key in ("width", "depth", "heads", "mlp", "branches", "patch", "channels", "classes"):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{key} must be a whole number of at least 1, not {value!r}")
        size = self.image_size
        pair = (size, size) if isinstance(size, int) else tuple(size)
        if len(pair) != 2 or any(not isinstance(n, int) or n < 1 for n in pair):
            raise UserError(f"image_size must be pixels, as 224 or (224, 320), not {size!r}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must lie in [0, 1), not {self.dropout!r}")
        if not self.norm_eps > 0:
            raise UserError(f"norm_eps must be above 0, not {self.norm_eps!r}")
        if not 0 < self.crop <= 1:
            raise UserError(f"crop must lie in (0, 1], not {self.crop!r}")
        if self.pre_logits < 0:
            raise UserError(f"pre_logits must be 0 or a number of units, not {self.pre_logits!r}")

    def _check_values(self) -> None:
        for key, hint in get_type_hints(type(self)).items():
            allowed = get_args(hint)
            if isinstance(hint, type) or not all(isinstance(value, str) for value in allowed):
                continue
            if getattr(self, key) not in allowed:
                choices = ", ".join(allowed)
                raise UserError(f"{key} must be one of {choices}, not {getattr(self, key)!r}")

    def _normalise(self) -> None:
        def put(key: str, value: object) -> None:
            object.__setattr__(self, key, value)

        rows, columns = self.size
        put("image_size", rows if rows == columns else (rows, columns))
        put("pre_logits", self.width if self.pre_logits is True else int(self.pre_logits))
        put("labels", tuple(self.labels))
        for key in ("mean", "std"):
            value = getattr(self, key)
            values = (value,) if isinstance(value, int | float) else tuple(value)
            if len(set(values)) == 1:  # one number for all: as many as there are channels
                values = values[:1] * self.channels
            put(key, tuple(float(number) for number in values))

    def _check_fit(self) -> None:
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
        for key in ("mean", "std"):
            if len(getattr(self, key)) != self.channels:
                raise UserError(f"{key} needs {self.channels} numbers, one a channel")
        if min(self.std) <= 0:
            raise UserError(f"std must be above 0, not {self.std!r}")
        if self.labels and len(self.labels) != self.classes:
            raise UserError(f"labels has {len(self.labels)} names for classes={self.classes}")
