"""Every architectural choice of an image tokenizer, as one frozen value."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig, check_parameters
from vitlab.models.grid import check_multiple
from vitlab.models.names import tokenizer_name
from vitlab.options import at_least, at_most, option, when

MOST_STRIDE = 64


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(ModelConfig):
    """A discrete VAE: an encoder to codes, a codebook, and a decoder back to pixels.

    Its images may have any size that its stride divides. The usual values are those of
    lucidrains/DALLE-pytorch (`DiscreteVAE`), and with `form=dalle` of openai/DALL-E.

    Raises:
        OptionError: a value or combination that is not possible; the message says what would work.
    """

    kind: ClassVar[str] = "tokenizer"

    classes: int = option(0, "outputs of the classifier, which a tokenizer does not have")
    zero_head: bool = option(False, "start the classifier at zero", only=when("classes"))
    head_bias: float = option(0.0, "initial bias of the classifier", only=when("classes"))
    form: Literal["dvae", "dalle"] = option(
        "dvae",
        "layers of a tokenizer: dvae, strided convolutions, then residual blocks; dalle, OpenAI's "
        "groups of bottlenecks with pooling between them",
    )
    stride: int = option(
        8, "pixels per side of a code: 2, 4, 8, 16, 32 or 64", at_least(2), at_most(MOST_STRIDE)
    )
    codes: int = option(8192, "codes that a tokenizer tells apart", at_least(2))
    code_width: int = option(512, "channels of a code in the codebook", at_least(1))
    width: int = option(
        64, "channels of a tokenizer's layers; dalle doubles them in each group", at_least(1)
    )
    depth: int = option(1, "residual blocks of a tokenizer; dalle: in each group", at_least(0))
    decoder: bool = option(
        True, "with codebook and decoder; without them, images become codes and nothing more"
    )
    laplace: bool = option(
        False,
        "the decoder also gives the scale of each value's logit-Laplace distribution, as DALL-E's "
        "does",
        only=when("decoder"),
    )

    def __post_init__(self) -> None:
        """Check every field by itself, then together."""
        super().__post_init__()
        if self.classes:
            raise OptionError(
                f"{self.name} is a tokenizer, which has no classes: train a classifier such as "
                "ViT-B/16"
            )
        if self.stride & (self.stride - 1):
            raise OptionError(f"stride must be a power of two such as 8, not {self.stride}")
        if self.fit == "native":
            raise OptionError("fit=native needs a Vision Transformer: use fit=crop or fit=squash")
        if self.form == "dalle" and (self.width % 4 or not self.depth):
            raise OptionError(
                f"form=dalle needs a width that 4 divides and a depth of at least 1, not width="
                f"{self.width} and depth={self.depth}"
            )
        kernels = (17 * self.halvings + 19 * self.depth) * self.features**2
        check_parameters(2 * kernels + self.codes * (self.features + self.code_width))
        check_multiple(self.size, self.stride, f"stride={self.stride}")

    def check_size(self, size: tuple[int, int]) -> None:
        """Refuse images that are not whole codes."""
        check_multiple(size, self.stride, f"stride={self.stride}")

    @property
    def name(self) -> str:
        """What the shape is called, `dVAE/8` or `DALL-E/8`; `config_of` reads it."""
        return tokenizer_name(self.form, self.stride, vars(self))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the codes."""
        rows, columns = self.size
        return rows // self.stride, columns // self.stride

    @property
    def halvings(self) -> int:
        """How often the encoder halves each side."""
        return self.stride.bit_length() - 1

    @property
    def features(self) -> int:
        """Channels of the map that the codes are told from."""
        return self.width << self.halvings if self.form == "dalle" else self.width

    @property
    def outputs(self) -> int:
        """Channels of the decoder's output: those of images, twice with `laplace`."""
        return self.channels * (2 if self.laplace else 1)

    def with_classes(self, classes: int) -> Self:
        """Return the same, since there is nothing to change.

        Raises:
            OptionError: there should be classes.
        """
        values: dict[str, Any] = {"classes": classes}
        return replace(self, **values)
