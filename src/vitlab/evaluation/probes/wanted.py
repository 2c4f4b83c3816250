"""Features: what can be taken of a model, and by which protocols it is judged, as options."""

from dataclasses import dataclass
from typing import Literal

from vitlab.options import Options, at_least, option, when

ProtocolName = Literal["fewshot", "knn", "means", "logistic", "simclr"]
"""A published way to judge features (`vitlab.evaluation.probes.probing`)."""


@dataclass(frozen=True, kw_only=True)
class Pooled(Options):
    """One vector per image; or, to be compared, all that a head could see.

    Raises:
        OptionError: a layer of what the classifier sees, which has none.
    """

    what: Literal["features", "mean", "all"] = option(
        "features",
        "features: what the classifier sees; mean: the mean of the patch tokens; all: a table of "
        "class token, mean, both and the last blocks, the best chosen on training images",
    )
    layer: int | None = option(
        None,
        "the block (of a ResNet: stage) whose output is taken, 0 for the input of the first one "
        "(None: the last one, after the final norm)",
        at_least(0),
        only=when("what", "mean"),
    )

    @property
    def layers(self) -> tuple[int, ...]:
        """The blocks; none for the last one, after the final norm."""
        return () if self.layer is None else (self.layer,)


@dataclass(frozen=True, kw_only=True)
class Cuts(Options):
    """What the heads of a Vision Transformer would see that was cut after each of some blocks.

    One vector per image: of each layer the class token, if there is one, and the mean of the patch
    tokens, after all that follows the last block.
    """

    layers: tuple[int, ...] = ()
    what: Literal["cuts"] = "cuts"


@dataclass(frozen=True, kw_only=True)
class Taken(Options):
    """One vector per image, or one per token.

    Raises:
        OptionError: a layer of what the classifier sees, which has none.
    """

    what: Literal["features", "token", "mean", "both", "patches", "tokens"] = option(
        "features",
        "features: what the classifier sees; token: the class token; mean: the mean of the patch "
        "tokens; both: class token and mean, one after the other; patches: each patch token, row "
        "by row; tokens: class token and registers too",
    )
    layer: tuple[int, ...] = option(
        (),
        "the blocks (of a ResNet: stages) whose outputs are taken, one after the other in each "
        "vector; 0 for the input of the first one (empty: the last one, after the final norm)",
        at_least(0),
        only=when("what", "token", "mean", "both", "patches", "tokens"),
    )
    dtype: Literal["fp32", "fp16"] = option(
        "fp32", "numbers in the file: fp16 has half the bytes, and 3 digits"
    )

    @property
    def layers(self) -> tuple[int, ...]:
        """The blocks; none for the last one, after the final norm."""
        return self.layer
