"""Features: what can be taken of a model, and by which protocols it is judged, as options."""

from dataclasses import dataclass
from typing import Literal, get_args

from vitlab.data.settings import Columns
from vitlab.options import Options, above, at_least, option, when

CACHE = (
    "folder in which features are kept for the next time, or no (auto: vitlab/features in the "
    "user's cache folder, at most 20 GB)"
)
ProtocolName = Literal["fewshot", "knn", "means", "logistic"]
"""A published way to judge features (`vitlab.evaluation.probes.probing`)."""


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

    @property
    def layers(self) -> tuple[int, ...]:
        """The blocks; none for the last one, after the final norm."""
        return () if self.layer is None else (self.layer,)


@dataclass(frozen=True, kw_only=True)
class Probing(Options):
    """By which protocols features are judged, and which features."""

    protocol: tuple[ProtocolName, ...] = option(
        get_args(ProtocolName),
        "fewshot: least squares on few images of each class (big_vision, the ViT paper); knn: 10, "
        "20, 100 and 200 neighbors (DINO, DINOv2); means: the nearest class mean; logistic: "
        "logistic regression as DINOv2 evaluates",
    )
    shots: tuple[int, ...] = option((1, 5, 10, 25), "training images per class", at_least(1))
    seeds: int = option(3, "times the shots are drawn: seeds 0, 1, …", at_least(1))
    l2: float | Literal["auto"] = option(
        "auto",
        "penalty of the few-shot fit (auto: 1024, the paper's, and beside it the best by "
        "leave-one-out on the shots)",
        above(0),
    )
    features: Pooled = Pooled()
    columns: Columns = Columns()
    cache: str = option("auto", CACHE)


@dataclass(frozen=True, kw_only=True)
class Cuts(Options):
    """What the heads of a Vision Transformer would see that was cut after each of some blocks.

    One vector per image: of each layer the class token, if there is one, and the mean of the patch
    tokens, after all that follows the last block; without layers, what the classifier sees. Then
    what `Model.inner` gives of one layer, of a number above 0.
    """

    layers: tuple[int, ...] = ()
    inner: int = 0
    what: Literal["cuts"] = "cuts"


@dataclass(frozen=True, kw_only=True)
class InnerFeatures(Options):
    """One vector per image: what `Model.inner` gives of a layer."""

    layer: int
    what: Literal["inner"] = "inner"


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
