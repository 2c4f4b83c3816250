"""The choices that every model has, whatever its body."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from vitlab.errors import CONTROL, OptionError
from vitlab.images import ImageSpec, Size
from vitlab.models.names import shape_of
from vitlab.options import at_least, defaults, option

MOST_BLOCKS, MOST_PARAMETERS = 2000, 10**11  # the largest published model has 22 billion


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ImageSpec):
    """The choices that every model has: its images (`ImageSpec`) and its classes.

    Raises:
        OptionError: a value or combination that is not possible; the message says what would work.
    """

    kind: ClassVar[str]  # in a saved config.json

    classes: int = option(1000, "outputs of the classifier (0: none, only features)", at_least(0))
    zero_head: bool = option(False, "start the classifier at zero, as for fine-tuning")
    head_bias: float = option(
        0.0, "initial bias of the classifier: -10 with sigmoid losses over many classes (Google)"
    )
    labels: tuple[str, ...] = option((), "names of the classes in the order of the outputs")

    def __post_init__(self) -> None:
        """Check every field by itself, then together."""
        super().__post_init__()
        if self.labels and len(self.labels) != self.classes:
            raise OptionError(f"labels has {len(self.labels)} names for classes={self.classes}")
        for label in filter(CONTROL.search, self.labels):
            raise OptionError(
                f"the name of the class {label[:80]!r} has a control character: give it another "
                "name (in Python, labels=…)"
            )

    @property
    def name(self) -> str:
        """The papers' notation for this shape, `ViT-B/16`."""
        raise NotImplementedError

    def chosen(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults of a model of this name."""
        usual = defaults(type(self)) | shape_of(self.name)
        alike = {"mean": (self.mean[0],), "std": (self.std[0],)}  # one number may stand for all
        own = vars(self) | {n: one for n, one in alike.items() if set(vars(self)[n]) == {*one}}
        return {name: own[name] for name in usual if own[name] != usual[name]}

    def sized(self, image_size: Size) -> Self:
        """Return the same for another image size; positions stay as they are stored."""
        return replace(self, image_size=image_size)

    @property
    def settled(self) -> Self:
        """The same with positions stored for its own image size."""
        return self

    @property
    def at_positions(self) -> Self:
        """The same for images of the size that stored positions are for."""
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the last map, or of the patches."""
        raise NotImplementedError

    def check_size(self, size: tuple[int, int]) -> None:
        """Refuse images of a size that the model does not take.

        Args:
            size: rows and columns, in pixels

        Raises:
            OptionError: the message names the nearest sizes that it takes.
        """

    def check_packed(self, channels: int, patch: int) -> None:
        """Refuse images of different sizes, cut into patches, that the model does not take.

        Args:
            channels: of every image
            patch: pixels per side

        Raises:
            OptionError: the message says what would work.
        """
        raise OptionError(f"{self.name} has no patches to pack: pass images of one size")

    @property
    def features(self) -> int:
        """Width of the classifier's input."""
        raise NotImplementedError

    def layer_width(self, layer: int) -> int:
        """Return the width of what leaves a layer, from 1; 0 of one that is not there."""
        return 0

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes: their numbers where the weights name none."""
        return self.labels or tuple(str(number) for number in range(self.classes))

    @property
    def blocks(self) -> int:
        """Number of encoder blocks; a ResNet has none."""
        return 0

    @property
    def answers(self) -> int:
        """Outputs per image: 1, or as many as attention pooling has queries."""
        return 1

    def with_classes(self, classes: int) -> Self:
        """Return the same for a new classifier, which starts at zero (ViT paper, section 3.2).

        The names of the classes stay where their number does.
        """
        labels = self.labels if classes == len(self.labels) else ()
        return replace(self, classes=classes, labels=labels, zero_head=True, head_bias=0.0)


def map_stride(stages: tuple[int, ...]) -> int:
    """Return the pixels per side of each place of a ResNet's last map.

    The root and the first stage give 4, each further stage doubles it.
    """
    return 2 ** (max(len(stages), 1) + 1)


def map_features(stages: tuple[int, ...], widen: int) -> int:
    """Return the channels of a ResNet's last map: 64 after the root, then 256 and doubled."""
    return 256 * widen * 2 ** (len(stages) - 1) if stages else 64 * widen


def check_stages(stages: tuple[int, ...]) -> None:
    """Refuse a ResNet of more units than could be built."""
    if len(stages) > 8 or sum(stages) > MOST_BLOCKS:
        raise OptionError(f"stages has {len(stages)} stages of {sum(stages):,} units: too many")


def check_parameters(count: int) -> None:
    """Refuse a model that no machine could hold."""
    if count > MOST_PARAMETERS:
        raise OptionError(
            f"the model would have more than {count:.0e} parameters; at most "
            f"{MOST_PARAMETERS:.0e} are supported"
        )
