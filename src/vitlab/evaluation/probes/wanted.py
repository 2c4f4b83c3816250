"""What can be taken of a model as an image's features."""

from dataclasses import dataclass
from typing import Literal

from vitlab.options import Options, at_least, option, when


@dataclass(frozen=True, kw_only=True)
class Pooled(Options):
    """One vector per image.

    Raises:
        OptionError: a layer of what the classifier sees, which has none.
    """

    what: Literal["features", "mean"] = option(
        "features", "features: what the classifier sees; mean: the mean of the patch tokens"
    )
    layer: int | None = option(
        None,
        "the block (of a ResNet: stage) whose output is taken, 0 for the input of the first one "
        "(None: the last one, after the final norm)",
        at_least(0),
        only=when("what", "mean"),
    )


@dataclass(frozen=True, kw_only=True)
class Taken(Options):
    """One vector per image, or one per token.

    Raises:
        OptionError: a layer of what the classifier sees, which has none.
    """

    what: Literal["features", "mean", "patches", "tokens"] = option(
        "features",
        "features: what the classifier sees; mean: the mean of the patch tokens; patches: each "
        "patch token, row by row; tokens: class token and registers too",
    )
    layer: int | None = option(
        None,
        "the block (of a ResNet: stage) whose output is taken, 0 for the input of the first one "
        "(None: the last one, after the final norm)",
        at_least(0),
        only=when("what", "mean", "patches", "tokens"),
    )
